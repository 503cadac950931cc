"""The devices of a run as a mesh whose axes are what collectives run along."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from feeder.errors import ConfigError
from feeder.trainer.grid import Grid

__all__ = ["ALL", "Replicas", "X", "Y"]

X = ("xo", "xi")
Y = ("yo", "yi")
ALL = X + Y


class Replicas:
    """A grid of replicas, one a device, as a JAX mesh.

    Both dimensions of the grid are factored, x into `xo` (groups) and `xi` (within a group), y likewise, so
    that a sum along x, along y, over a batch-norm group or over all is a sum over named axes.

    Attributes:
        grid: what it was made of.
        tile: replicas of a batch-norm group along x and y.
        mesh: axes xo, xi, yo, yi, row-major: a batch that is sharded over all of them lies on the replicas
            in the order of their numbers.
        norm_axes: axes within a batch-norm group; None where that is one replica, which needs no collective.
        batch: sharding of a batch over its first axis.
        replicated: sharding of what is the same everywhere.
        per_group: sharding of what differs by group, over its first axis.
    """

    def __init__(self, grid: Grid, group: int = 1) -> None:
        """
        Args:
            grid: of all devices of all processes, or of the first ones where one process needs fewer.
            group: replicas of a batch-norm group.

        Raises:
            ConfigError: the grid does not fit the devices, or the group the grid.
        """
        self.grid = grid
        self.tile = gx, gy = grid.tile(group)
        count = jax.device_count()
        if grid.replicas > count or (jax.process_count() > 1 and grid.replicas != count):
            raise ConfigError(
                f"a mesh of {grid} needs {grid.replicas} devices, there are {count} in {jax.process_count()} "
                f"processes"
            )
        plane = jax.make_mesh(  # neighbours in it are neighbours on the hardware
            (grid.x, grid.y),
            ("x", "y"),
            axis_types=(AxisType.Auto,) * 2,
            devices=jax.devices()[: grid.replicas],
        )
        devices = np.asarray(plane.devices).reshape(grid.x // gx, gx, grid.y // gy, gy)
        self.mesh = Mesh(devices, ALL, axis_types=(AxisType.Auto,) * 4)
        within = tuple(axis for axis in ("xi", "yi") if self.mesh.shape[axis] > 1)
        across = tuple(axis for axis in ALL if axis not in within)
        self.norm_axes = within or None
        self.batch = NamedSharding(self.mesh, PartitionSpec(ALL))  # type: ignore[no-untyped-call]
        self.replicated = NamedSharding(self.mesh, PartitionSpec())  # type: ignore[no-untyped-call]
        self.per_group = NamedSharding(self.mesh, PartitionSpec(across))  # type: ignore[no-untyped-call]

    @property
    def groups(self) -> int:
        """Number of batch-norm groups."""
        return self.grid.replicas // (self.tile[0] * self.tile[1])
