"""Decoded planes and encoded records in memory that the workers of a host share; knows nothing of either."""

from feeder.cache.budget import Size, check_budget, parse_size, resolve
from feeder.cache.encoded import ENCODED, EncodedShelf, encoded_filler, encoded_folder
from feeder.cache.fill import Filler, Offer, PlanesOf
from feeder.cache.folder import Folder, default_folder
from feeder.cache.shelf import Counters, Found, Records, Shelf
from feeder.cache.store import Cache

__all__ = [
    "ENCODED",
    "Cache",
    "Counters",
    "EncodedShelf",
    "Filler",
    "Folder",
    "Found",
    "Offer",
    "PlanesOf",
    "Records",
    "Shelf",
    "Size",
    "check_budget",
    "default_folder",
    "encoded_filler",
    "encoded_folder",
    "parse_size",
    "resolve",
]
