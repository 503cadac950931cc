"""Draws photo-like pictures of simple objects: natural-spectrum backgrounds, shaded shapes, shadows.

A class is told by both its hue and its shape. Everything else (place, size, number, rotation, light,
background, colour cast, noise, what lies in front) is random and says nothing about the class.
"""

from __future__ import annotations

import colorsys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["SHAPES", "Textures", "draw", "shape_name"]

Plane = npt.NDArray[np.floating[Any]]
"""float32: float64 would double the time. (The type is wide because NumPy's stubs lose the difference.)"""

TEXTURE_SIDE = 768
"""Pixels after which a texture repeats, seamlessly."""

# Amplitude falls as 1/f**exponent: 1.0 to 1.3 is what photographs show; the smoother ones pass for
# backgrounds out of focus. They set the file sizes: chosen for ImageNet's 110 kB at synth.py's qualities.
_EXPONENTS = (0.95, 1.05, 1.15, 1.3, 1.6)


class Textures:
    """A fixed stock of random planes that pictures are cut from: new ones for each would take too long.

    Attributes:
        spectral: float32 planes of mean 0 and deviation 1, from rough to smooth.
        noise: float32 plane, white, mean 0 and deviation 1.

    All planes hold their texture twice in each direction, [1536, 1536], so that any window is a slice.
    """

    def __init__(self, seed: int) -> None:
        rng = np.random.Generator(np.random.PCG64([seed, 1]))
        side = TEXTURE_SIDE
        fy = np.fft.fftfreq(side)[:, None]
        fx = np.fft.rfftfreq(side)[None, :]
        frequency = np.hypot(fy, fx)
        frequency[0, 0] = 1.0
        self.spectral: list[Plane] = []
        for exponent in _EXPONENTS:
            spectrum = np.fft.rfft2(rng.standard_normal((side, side))) / frequency**exponent
            spectrum[0, 0] = 0.0
            plane = np.fft.irfft2(spectrum, s=(side, side))
            self.spectral.append(np.tile((plane / plane.std()).astype(np.float32), (2, 2)))
        self.noise = np.tile(rng.standard_normal((side, side), dtype=np.float32), (2, 2))


def _cut(plane: Plane, height: int, width: int, rng: np.random.Generator) -> Plane:
    """A random window of a texture, [height, width], mirrored at random; a view."""
    y = int(rng.integers(0, 2 * TEXTURE_SIDE - height + 1))
    x = int(rng.integers(0, 2 * TEXTURE_SIDE - width + 1))
    window = plane[y : y + height, x : x + width]
    return window[:, ::-1] if rng.random() < 0.5 else window


# A shape is a function of coordinates in [-1, 1]: negative inside, near its edge about the distance to it.


def _disc(x: Plane, y: Plane) -> Plane:
    return np.hypot(x, y) - 0.9


def _ring(x: Plane, y: Plane) -> Plane:
    return np.abs(np.hypot(x, y) - 0.68) - 0.24


def _square(x: Plane, y: Plane) -> Plane:
    distance: Plane = np.maximum(np.abs(x), np.abs(y)) - 0.76
    return distance


def _polygon(sides: int, inradius: float) -> Callable[[Plane, Plane], Plane]:
    angles = np.arange(sides) * (2 * np.pi / sides) + np.pi / 2

    def distance(x: Plane, y: Plane) -> Plane:
        sides = [x * np.float32(np.cos(angle)) + y * np.float32(np.sin(angle)) for angle in angles]
        farthest: Plane = np.max(sides, axis=0)
        return farthest - inradius

    return distance


def _star(x: Plane, y: Plane) -> Plane:
    sector = 2 * np.pi / 5
    angle = np.abs((np.arctan2(y, x) + np.pi / 2) % sector - sector / 2)
    radius = np.hypot(x, y)
    along, across = radius * np.cos(angle), radius * np.sin(angle)
    # The edge runs from the notch (0.4, on the axis of a sector) to the tip (0.98, on its border).
    tip_x, tip_y = 0.98 * np.cos(sector / 2), 0.98 * np.sin(sector / 2)
    edge_x, edge_y = tip_x - 0.4, tip_y
    length = np.hypot(edge_x, edge_y)
    return (along - 0.4) * np.float32(edge_y / length) - across * np.float32(edge_x / length)


def _cross(x: Plane, y: Plane) -> Plane:
    ax, ay = np.abs(x), np.abs(y)
    union: Plane = np.minimum(np.maximum(ax - 0.92, ay - 0.3), np.maximum(ay - 0.92, ax - 0.3))
    return union


def _crescent(x: Plane, y: Plane) -> Plane:
    moon: Plane = np.maximum(np.hypot(x, y) - 0.92, 0.72 - np.hypot(x - 0.45, y))
    return moon


def _bar(x: Plane, y: Plane) -> Plane:
    return np.hypot(np.maximum(np.abs(x) - 0.66, 0.0), y) - 0.28


def _heart(x: Plane, y: Plane) -> Plane:
    # A square on its corner, with a disc on each of its two upper edges.
    ax = np.abs(x)
    square = (ax + np.abs(y - 0.08) - 0.76) * 0.707
    union: Plane = np.minimum(square, np.hypot(ax - 0.38, y + 0.3) - 0.537)
    return union


SHAPES: dict[str, Callable[[Plane, Plane], Plane]] = {
    "disc": _disc,
    "square": _square,
    "star": _star,
    "ring": _ring,
    "triangle": _polygon(3, 0.5),
    "cross": _cross,
    "crescent": _crescent,
    "hexagon": _polygon(6, 0.8),
    "bar": _bar,
    "heart": _heart,
}


def shape_name(label: int) -> str:
    """Shape of a class; with more classes than shapes, hue alone tells those of one shape apart."""
    return list(SHAPES)[label % len(SHAPES)]


def draw(
    textures: Textures, label: int, classes: int, height: int, width: int, rng: np.random.Generator
) -> Plane:
    """One picture of a class.

    Args:
        textures: stock to cut backgrounds from.
        label: class in [0, classes).
        classes: number of classes; their hues are spread over the circle.
        height, width: pixels.
        rng: all that is random comes from here.

    Returns:
        float32 [3, height, width], RGB around [0, 255], unclipped and unrounded.
    """
    picture = _background(textures, height, width, rng)
    light = rng.uniform(0, 2 * np.pi)
    for _ in range(1 + rng.choice(4, p=(0.45, 0.3, 0.15, 0.1))):
        hue = (label + rng.uniform(-0.22, 0.22)) / classes
        _place_object(picture, textures, SHAPES[shape_name(label)], hue, light, rng)
    if rng.random() < 0.4:
        _occlude(picture, textures, rng)
    picture *= rng.uniform(0.92, 1.08, (3, 1, 1)).astype(np.float32)  # colour balance
    picture += _cut(textures.noise, height, width, rng) * np.float32(rng.uniform(1.0, 4.0))
    return picture


def _background(textures: Textures, height: int, width: int, rng: np.random.Generator) -> Plane:
    """Muted, with a large-scale gradient of light; float32 [3, height, width]."""
    rough = int(rng.integers(0, len(textures.spectral) - 1))
    luma = _cut(textures.spectral[rough], height, width, rng) * np.float32(rng.uniform(22, 52))
    slope = rng.uniform(-40, 40, 2)
    luma += np.linspace(-slope[0], slope[0], height, dtype=np.float32)[:, None]
    luma += np.linspace(-slope[1], slope[1], width, dtype=np.float32)[None, :]
    luma += np.float32(rng.uniform(85, 165))
    tint = rng.uniform(-14, 14, 3)
    chroma = rng.uniform(3, 12)
    picture = np.empty((3, height, width), np.float32)
    warm = _cut(textures.spectral[min(rough + 1, len(textures.spectral) - 1)], height, width, rng)
    for channel, weight in enumerate((1.0, 0.1, -1.0)):
        np.multiply(warm, np.float32(weight * chroma), out=picture[channel])
        picture[channel] += luma
        picture[channel] += np.float32(tint[channel])
    return picture


def _place_object(
    picture: Plane,
    textures: Textures,
    shape: Callable[[Plane, Plane], Plane],
    hue: float,
    light: float,
    rng: np.random.Generator,
) -> None:
    """Draws one shaded object and its shadow into the picture; it may reach over the border a little."""
    height, width = picture.shape[1:]
    radius = rng.uniform(0.13, 0.34) * min(height, width)
    centre_y, centre_x = rng.uniform(0.15, 0.85) * height, rng.uniform(0.15, 0.85) * width
    reach = radius * 1.45
    top, bottom = max(0, int(centre_y - reach)), min(height, int(centre_y + reach) + 1)
    left, right = max(0, int(centre_x - reach)), min(width, int(centre_x + reach) + 1)
    dy = (np.arange(top, bottom, dtype=np.float32)[:, None] - np.float32(centre_y)) / np.float32(radius)
    dx = (np.arange(left, right, dtype=np.float32)[None, :] - np.float32(centre_x)) / np.float32(radius)
    turn = rng.uniform(-0.6, 0.6)
    cos, sin = np.float32(np.cos(turn)), np.float32(np.sin(turn))

    def distance(x: Plane, y: Plane) -> Plane:
        return shape(cos * x + sin * y, cos * y - sin * x)

    region = picture[:, top:bottom, left:right]
    towards_x, towards_y = np.float32(np.cos(light)), np.float32(np.sin(light))
    shadow = np.clip(
        0.5 - distance(dx + np.float32(0.16) * towards_x, dy + np.float32(0.16) * towards_y) * 5, 0, 1
    ) * np.float32(0.45)
    region *= 1 - shadow
    edge = distance(dx, dy)
    cover = np.clip(0.5 - edge * np.float32(radius), 0, 1)
    colour = 255 * np.array(
        colorsys.hsv_to_rgb(hue % 1, rng.uniform(0.6, 0.95), rng.uniform(0.6, 0.95)), np.float32
    )
    facing = dx * towards_x + dy * towards_y
    shade = 1 + np.float32(0.28) * facing + np.float32(0.12) * np.clip(-edge * 4, 0, 1)
    grain = _cut(textures.spectral[int(rng.integers(0, 3))], bottom - top, right - left, rng)
    shade += grain * np.float32(rng.uniform(0.03, 0.1))
    glint = 70 * np.exp(-((dx - 0.35 * towards_x) ** 2 + (dy - 0.35 * towards_y) ** 2) * 14)
    surface = shade * colour[:, None, None] + glint
    region += cover * (surface - region)


def _occlude(picture: Plane, textures: Textures, rng: np.random.Generator) -> None:
    """Lays a muted, slightly bent strip across the picture: a post, a branch, a blade of grass."""
    height, width = picture.shape[1:]
    half = rng.uniform(0.012, 0.045) * min(height, width)
    y = np.arange(height, dtype=np.float32)
    middle = rng.uniform(0.1, 0.9) * width + rng.uniform(-0.5, 0.5) * y
    middle += rng.uniform(-0.08, 0.08) * width * np.sin(y * np.float32(rng.uniform(1, 4) / height))
    left, right = max(0, int(middle.min() - half - 1)), min(width, int(middle.max() + half + 2))
    if left >= right:
        return
    across = (
        np.arange(left, right, dtype=np.float32)[None, :] - middle[:, None].astype(np.float32)
    ) / np.float32(half)
    cover = np.clip((1 - np.abs(across)) * np.float32(half) + 0.5, 0, 1)
    colour = rng.uniform(45, 120) + rng.uniform(-12, 12, 3).astype(np.float32)
    bark = _cut(textures.spectral[0], height, right - left, rng) * 14 + (1 - across**2) * 30
    region = picture[:, :, left:right]
    region += cover * (bark + colour.astype(np.float32)[:, None, None] - region)
