from __future__ import annotations

import pytest

from feeder.errors import ConfigError
from feeder.trainer.grid import Grid


@pytest.mark.parametrize(
    ("text", "grid"), [("4x2", Grid(4, 2)), ("8", Grid(8, 1)), ("128x256", Grid(128, 256))]
)
def test_parse(text: str, grid: Grid) -> None:
    assert Grid.parse(text) == grid
    assert Grid.parse(str(grid)) == grid


@pytest.mark.parametrize("text", ["", "x", "4x", "4x2x2", "-4", "4 x 2", "0", "4x0"])
def test_what_is_no_grid(text: str) -> None:
    with pytest.raises(ConfigError, match="mesh"):
        Grid.parse(text)


# The rule of MLPerf v0.7's JAX code on a full pod of 128 x 64 cores, and what it comes to on small meshes.
@pytest.mark.parametrize(
    ("grid", "group", "tile"),
    [
        (Grid(128, 64), 1, (1, 1)),
        (Grid(128, 64), 2, (2, 1)),
        (Grid(128, 64), 4, (4, 1)),
        (Grid(128, 64), 8, (4, 2)),
        (Grid(128, 64), 16, (8, 2)),
        (Grid(128, 64), 256, (128, 2)),
        (Grid(128, 64), 512, (128, 4)),
        (Grid(128, 64), 8192, (128, 64)),
        (Grid(2, 4), 4, (2, 2)),
        (Grid(16, 1), 8, (8, 1)),
        (Grid(8, 2), 4, (4, 1)),
        (Grid(3, 2), 6, (3, 2)),
    ],
)
def test_tile(grid: Grid, group: int, tile: tuple[int, int]) -> None:
    assert grid.tile(group) == tile


@pytest.mark.parametrize("group", [-2, 0, 3, 6, 64])
def test_groups_that_do_not_tile(group: int) -> None:
    with pytest.raises(ConfigError, match=f"groups of {group} replicas: possible are 1, 2, 4, 8, 16"):
        Grid(4, 4).tile(group)
    assert Grid(4, 4).groups() == [1, 2, 4, 8, 16]


@pytest.mark.parametrize(
    ("grid", "batch", "span", "group"),
    [
        (Grid(32, 32), 32768, None, 2),  # 32 each
        (Grid(32, 32), 65536, None, 1),
        (Grid(32, 64), 32768, 128, 8),
        (Grid(4, 2), 16, None, 8),  # less than 64 in all: all of it
        (Grid(4, 2), 16, 4, 2),
    ],
)
def test_group_of_a_span(grid: Grid, batch: int, span: int | None, group: int) -> None:
    assert grid.group(batch, span) == group


def test_spans_and_batches_that_are_not_possible() -> None:
    with pytest.raises(
        ConfigError, match=r"of 6 samples .* with 2 samples a replica .* possible are 2, 4, 8, 16"
    ):
        Grid(4, 2).group(16, 6)
    for batch in (12, 4):
        with pytest.raises(
            ConfigError, match=f"a batch of {batch} cannot be divided equally among 8 replicas"
        ):
            Grid(4, 2).group(batch, None)
