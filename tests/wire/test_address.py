"""Addresses as users write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.wire.address import Address, parse_address, parse_listen, parse_target


@pytest.mark.parametrize(
    ("text", "address", "grpc_target"),
    [
        ("127.0.0.1:80", Address("tcp", "127.0.0.1", 80), "127.0.0.1:80"),
        (" worker-3.local:50051 ", Address("tcp", "worker-3.local", 50051), "worker-3.local:50051"),
        ("[::1]:9", Address("tcp", "::1", 9), "[::1]:9"),
        ("[fe80::1%eth0]:9", Address("tcp", "fe80::1%eth0", 9), "[fe80::1%eth0]:9"),
        ("dns:feeder.svc:50051", Address("dns", "feeder.svc", 50051), "feeder.svc:50051"),
        ("unix:/run/feeder.sock", Address("unix", path="/run/feeder.sock"), "unix:/run/feeder.sock"),
        ("unix:///run/feeder.sock", Address("unix", path="/run/feeder.sock"), "unix:/run/feeder.sock"),
    ],
)
def test_forms(text: str, address: Address, grpc_target: str) -> None:
    assert parse_address(text) == address
    assert address.grpc_target == grpc_target
    assert parse_address(str(address)) == address


def test_lists() -> None:
    both = [Address("tcp", "a", 1), Address("tcp", "b", 2)]
    assert parse_target("a:1,b:2") == both
    assert parse_target("a:1, b:2") == both
    assert parse_target(["a:1", "b:2"]) == both


@pytest.mark.parametrize(
    "target",
    [
        "",
        " ",
        [],
        [""],
        "a",
        "a:",
        ":1",
        "a:0",
        "a:65536",
        "a:-1",
        "a:1x",
        "a:1,",
        "a:1,a:1",
        "::1:80",
        "[::1]",
        "a b:1",
        "http://a:1",
        "unix:",
        "unix:/",
        "unix:/" + "x" * 107,
        "unix:/a%20b",
        "unix:/a#b",
        "unix:/a?b",
        None,
        Path("/a"),
        [None],
        b"a:1",
        3,
        "dns:a",
        "dns:",
        "[a]:1",
        "-a:1",
        "a:1,b",
        "a:٣",
    ],
)
def test_nonsense_is_refused(target: Any) -> None:
    with pytest.raises(ConfigError):
        parse_target(target)


@given(st.text(max_size=30))
def test_any_text_gives_an_address_or_a_config_error(text: str) -> None:
    try:
        addresses = parse_target(text)
    except ConfigError:
        return
    assert parse_target([str(address) for address in addresses]) == addresses


def test_listen() -> None:
    assert parse_listen("127.0.0.1:0") == Address("tcp", "127.0.0.1", 0)
    assert parse_listen("unix:/a").kind == "unix"
    with pytest.raises(ConfigError, match="cannot listen"):
        parse_listen("dns:a:1")


def test_a_relative_path_in_a_folder_that_grpc_cannot_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "50%"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match="with % in it"):
        parse_target("unix:s")
