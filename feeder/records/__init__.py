"""Shards of records on storage: framing, index, and random access by record number."""

from feeder.records.dataset import Dataset, Record, ShardInfo
from feeder.records.example import RecordKeys

__all__ = ["Dataset", "Record", "RecordKeys", "ShardInfo"]
