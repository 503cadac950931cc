"""What a sum of gradients over a grid of replicas costs, in steps and bytes. No JAX here.

The model is that of rings, which are optimal in bandwidth. On a ring of n replicas,

    reduce-scatter of b bytes    n - 1 steps, in each of which every replica sends b / n to its neighbour
    all-gather of b bytes        the same
    all-reduce of b bytes        both: 2 (n - 1) steps of b / n

Steps count latency, bytes per link bandwidth. A replica has links along x and along y. The one ring of the
one-dimensional sum over all replicas takes a link of x at nearly every step, so its bytes are counted there.
In two dimensions the halves run at the same time on links of different dimensions; where x and y differ, the
half that is ahead shares links with the other for a while, which the model leaves out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from feeder.trainer.grid import Grid

__all__ = ["Collective", "Cost", "costs"]

FLOAT_BYTES = 4

Operation: TypeAlias = Literal["reduce-scatter", "all-reduce", "all-gather"]
Along: TypeAlias = Literal["x", "y", "xy"]

_OPERATIONS: tuple[Operation, Operation] = ("reduce-scatter", "all-gather")
_ROUTES: tuple[tuple[Along, Along], ...] = (("x", "y"), ("y", "x"))


@dataclass(frozen=True)
class Collective:
    """One collective operation on one part of the buffer.

    Attributes:
        part: number of the part that it works on; parts run at the same time.
        operation: which.
        along: "x", "y", or "xy" for all replicas.
        ring: replicas that take part together.
        payload_bytes: of the larger side: what a replica holds before a reduce-scatter, after an all-gather.
    """

    part: int
    operation: Operation
    along: Along
    ring: int
    payload_bytes: int

    @property
    def steps(self) -> int:
        """One after another, of the ring."""
        return (2 if self.operation == "all-reduce" else 1) * (self.ring - 1)

    @property
    def sent_bytes(self) -> int:
        """That each replica sends."""
        return self.steps * self.payload_bytes // self.ring


@dataclass(frozen=True)
class Cost:
    """Of one way to sum gradients.

    Attributes:
        scheme: "1d" or "2d", as feeder.trainer.gradients has them, or "2d, sharded update": there the
            optimiser works between the scatters and the gathers, on 1 / (x y) of the parameters each.
        padded: elements of the buffer.
        collectives: of all parts, in the order in which each part takes them.
    """

    scheme: str
    padded: int
    collectives: tuple[Collective, ...]

    @property
    def steps(self) -> int:
        """One after another, of the part that has most."""
        parts = {collective.part for collective in self.collectives}
        return max(sum(c.steps for c in self.collectives if c.part == part) for part in parts)

    @property
    def sent_bytes(self) -> int:
        """That each replica sends over all its links."""
        return sum(collective.sent_bytes for collective in self.collectives)

    @property
    def link_bytes(self) -> int:
        """That each replica sends along that dimension of the grid that carries more."""
        return max(
            sum(c.sent_bytes for c in self.collectives if c.along.startswith(along)) for along in ("x", "y")
        )


def costs(grid: Grid, parameters: int) -> list[Cost]:
    """The cost of each scheme.

    Args:
        grid: the replicas.
        parameters: float32 numbers that gradients are summed of; at least 1.
    """
    n = grid.replicas
    whole = math.ceil(parameters / n) * n
    half = math.ceil(parameters / (2 * n)) * n
    one = tuple(Collective(0, operation, "xy", n, whole * FLOAT_BYTES) for operation in _OPERATIONS)
    two: list[Collective] = []
    sharded: list[Collective] = []
    size: dict[Along, int] = {"x": grid.x, "y": grid.y}
    for part, (first, second) in enumerate(_ROUTES):
        big, small = half * FLOAT_BYTES, half // size[first] * FLOAT_BYTES
        scatter = Collective(part, "reduce-scatter", first, size[first], big)
        gather = Collective(part, "all-gather", first, size[first], big)
        two += [scatter, Collective(part, "all-reduce", second, size[second], small), gather]
        sharded += [
            scatter,
            Collective(part, "reduce-scatter", second, size[second], small),
            Collective(part, "all-gather", second, size[second], small),
            gather,
        ]
    return [
        Cost("1d", whole, one),
        Cost("2d", 2 * half, tuple(two)),
        Cost("2d, sharded update", 2 * half, tuple(sharded)),
    ]
