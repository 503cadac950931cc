"""Replicas as an X by Y grid, and the groups of them that share batch-norm statistics. No JAX here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from feeder.errors import ConfigError

__all__ = ["DEFAULT_SPAN", "Grid"]

DEFAULT_SPAN = 64
"""Samples that batch-norm statistics are of at least, as in the reference for pods (MLPerf v0.7, JAX)."""

LINE = 4
"""The largest group that lies in a line along x; larger ones are blocks."""


@dataclass(frozen=True)
class Grid:
    """X by Y replicas, one a device. Replica (i, j) has number i * y + j.

    Attributes:
        x, y: replicas along each dimension; at least 1. y is 1 where the devices form a line.
    """

    x: int
    y: int = 1

    def __post_init__(self) -> None:
        if self.x < 1 or self.y < 1:
            raise ConfigError(f"a mesh has at least 1 replica along each dimension, got {self}")

    @classmethod
    def parse(cls, text: str) -> Grid:
        """The grid that "32x32", or "8" for a line, stands for.

        Raises:
            ConfigError: it is neither.
        """
        match = re.fullmatch(r"(\d{1,6})(?:x(\d{1,6}))?", text)
        if match is None:
            raise ConfigError(f"a mesh is given like 4x2, or 8 for a line, got {text!r}")
        return cls(int(match[1]), int(match[2] or 1))

    def __str__(self) -> str:
        return f"{self.x}x{self.y}"

    @property
    def replicas(self) -> int:
        """How many there are."""
        return self.x * self.y

    def tile(self, group: int) -> tuple[int, int]:
        """How many replicas a group has along x and along y.

        The rule of the reference (MLPerf v0.7, `local_replica_groups`): up to 4 replicas form a line along x;
        more form a block of two rows, or of more where it spans all of x. So the group is compact on the
        torus, and its sum takes few hops. Where y has no room, it is longer in x.

        Args:
            group: replicas of a group; a power of two, or all replicas.

        Raises:
            ConfigError: the grid cannot be cut into such groups.
        """
        if group == self.replicas:
            return self.x, self.y
        along_x = min(group if group <= LINE else group // 2, self.x)
        along_y = group // max(along_x, 1)
        if along_y > self.y:
            along_x, along_y = group // self.y, self.y
        if (
            group < 1
            or group & (group - 1)
            or along_x * along_y != group
            or self.x % along_x
            or self.y % along_y
        ):
            raise ConfigError(
                f"a {self} mesh cannot be cut into batch-norm groups of {group} replicas: possible are "
                f"{', '.join(map(str, self.groups()))}"
            )
        return along_x, along_y

    def groups(self) -> list[int]:
        """The sizes that a group may have, ascending; the last one is all replicas."""
        sizes = []
        size = 1
        while size < self.replicas:
            try:
                self.tile(size)
            except ConfigError:
                pass
            else:
                sizes.append(size)
            size *= 2
        return [*sizes, self.replicas]

    def group(self, batch_size: int, span: int | None) -> int:
        """Replicas of a batch-norm group.

        Args:
            batch_size: of the whole step.
            span: samples that the statistics are of. None: the smallest group that has at least 64, or all.

        Raises:
            ConfigError: the batch cannot be divided among the replicas, or the span not made up of them.
        """
        each, rest = divmod(batch_size, self.replicas)
        if rest or not each:
            raise ConfigError(
                f"a batch of {batch_size} cannot be divided equally among {self.replicas} replicas"
            )
        if span is None:
            sizes = [size for size in self.groups() if size * each >= DEFAULT_SPAN]
            return sizes[0] if sizes else self.replicas
        if span not in [size * each for size in self.groups()]:
            raise ConfigError(
                f"batch-norm statistics of {span} samples are not possible with {each} samples a replica on "
                f"a {self} mesh: possible are {', '.join(str(size * each) for size in self.groups())}"
            )
        return span // each
