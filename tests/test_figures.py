"""Figures as people read them."""

from __future__ import annotations

import pytest

from feeder.figures import number, share, short, size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.00123456, "0.00123"),
        (9.996, "10"),
        (99.96, "100"),
        (180.0, "180"),
        (2000, "2,000"),
        (1.26e6, "1,260,000"),
    ],
)
def test_numbers_have_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert number(value) == text


def test_numbers_of_two_digits() -> None:
    assert [number(value, 2) for value in (0.0098, 4.46, 9.96, 120.4)] == ["0.0098", "4.5", "10", "120"]


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.7e6, "1 GB"),
        (29.2e6, "29.2 MB"),
        (103_079_215_104, "103 GB"),
        (4e18, "4,000 PB"),
    ],
)
def test_sizes(nbytes: float, text: str) -> None:
    assert size(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.000412, "0.412 ms"), (0.9997, "1 s"), (0.98, "980 ms"), (4321, "4,321 s")]
)
def test_times(seconds: float, text: str) -> None:
    assert short(seconds) == text


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (0.0, "0 %"),
        (0.0001, "under 1 %"),
        (0.01, "1 %"),
        (0.5, "50 %"),
        (0.99, "99 %"),
        (0.9999, "over 99 %"),
        (1.0, "100 %"),
    ],
)
def test_a_share_of_0_or_100_percent_is_exact(part: float, text: str) -> None:
    assert share(part) == text
