"""Decoded planes in memory that all workers of a host share; knows nothing of what planes are."""

from feeder.cache.budget import Size, parse_size, resolve
from feeder.cache.fill import Filler, Offer, PlanesOf
from feeder.cache.folder import Folder, default_folder
from feeder.cache.store import Cache, Counters, Found, Records, Shelf

__all__ = [
    "Cache",
    "Counters",
    "Filler",
    "Folder",
    "Found",
    "Offer",
    "PlanesOf",
    "Records",
    "Shelf",
    "Size",
    "default_folder",
    "parse_size",
    "resolve",
]
