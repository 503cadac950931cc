"""Sums of gradients over a mesh of replicas, in one or two dimensions. For use inside `jax.shard_map`.

A tree of gradients becomes one flat buffer, so that a step has a few large collectives instead of one for
each tensor. The two-dimensional sum (Ying et al. 2018, "Image Classification at Supercomputer Scale") cuts
it in halves and sums both at the same time:

    one half    reduce-scatter along X, all-reduce along Y, all-gather along X
    the other   reduce-scatter along Y, all-reduce along X, all-gather along Y

so that links of both dimensions are busy, and on X by Y replicas a half takes 2 (X - 1) + 2 (Y - 1) steps of
a ring instead of 2 (X Y - 1). feeder.trainer.traffic has the model of its cost, which
`feeder plan collectives` prints.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from feeder.trainer.replicas import ALL, X, Y

__all__ = ["SCHEMES", "Flat", "Route", "Scheme", "sum_gradients"]

Scheme: TypeAlias = Literal["psum", "1d", "2d"]
"""How gradients are summed: by a plain psum, which is left to XLA; over one ring; or in two dimensions."""

SCHEMES: tuple[Scheme, ...] = get_args(Scheme)


class Route(NamedTuple):
    """The axes that a part of the buffer is summed along: scattered along `first`, summed along `second`."""

    first: tuple[str, ...]
    second: tuple[str, ...]


ROUTES: dict[Scheme, tuple[Route, ...]] = {"1d": (Route(ALL, ()),), "2d": (Route(X, Y), Route(Y, X))}


class Flat:
    """How a tree of float32 arrays lies in one buffer of equal parts, one for each route of a scheme.

    The buffer is padded with zeros to a multiple of parts times replicas, 2 X Y in two dimensions, so that
    each part can be scattered over all replicas.

    Attributes:
        routes: of the parts.
        size: elements of the tree.
        part: elements of a part.
    """

    def __init__(self, like: Any, scheme: Scheme, replicas: int) -> None:
        """
        Args:
            like: a tree of arrays or shapes.
            scheme: "1d" or "2d".
            replicas: of the whole mesh.
        """
        self.routes = ROUTES[scheme]
        self._leaves, self._structure = jax.tree.flatten(like)
        self.sizes = [math.prod(leaf.shape) for leaf in self._leaves]
        self.size = sum(self.sizes)
        multiple = len(self.routes) * replicas
        self.part = math.ceil(self.size / multiple) * replicas

    def split(self, tree: Any) -> tuple[jax.Array, ...]:
        """The parts, float32 [part] each."""
        flat, _ = ravel_pytree(tree)
        padded = jnp.pad(flat, (0, self.part * len(self.routes) - self.size))
        return tuple(jnp.split(padded, len(self.routes)))

    def join(self, parts: tuple[jax.Array, ...]) -> Any:
        """The tree that `split` made these parts of."""
        flat = jnp.concatenate(parts)
        leaves, begin = [], 0
        for leaf, size in zip(self._leaves, self.sizes, strict=True):
            leaves.append(flat[begin : begin + size].reshape(leaf.shape))
            begin += size
        return jax.tree.unflatten(self._structure, leaves)


def all_reduce(part: jax.Array, route: Route) -> jax.Array:
    """The sum of a part over all replicas, the same on each."""
    scattered = lax.psum_scatter(part, route.first, tiled=True)  # type: ignore[no-untyped-call]
    if route.second:
        scattered = lax.psum(scattered, route.second)  # type: ignore[no-untyped-call]
    summed: jax.Array = lax.all_gather(scattered, route.first, tiled=True, to="invarying")
    return summed


def sum_gradients(grads: Any, scheme: Scheme) -> Any:
    """The sum over all replicas of a tree of float32 arrays that vary over all axes of the mesh.

    The schemes differ in the order in which they add, and so in the last bits.
    """
    if scheme == "psum":
        return lax.psum(grads, ALL)  # type: ignore[no-untyped-call]
    flat = Flat(grads, scheme, lax.axis_size(ALL))
    parts = zip(flat.split(grads), flat.routes, strict=True)
    return flat.join(tuple(all_reduce(part, route) for part, route in parts))
