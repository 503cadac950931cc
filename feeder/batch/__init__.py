"""Chunks of a step: which records, their bytes, their pixels, and what stands in for a record that is bad."""

from __future__ import annotations

from feeder.batch.maker import Asked, BadChunk, ChunkMaker, Fetched, FoundBad, MadeChunk
from feeder.batch.warm import warm

__all__ = ["Asked", "BadChunk", "ChunkMaker", "Fetched", "FoundBad", "MadeChunk", "warm"]
