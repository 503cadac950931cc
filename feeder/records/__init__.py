"""Shards of records on storage: framing, index, and random access by record number."""

from feeder.records.dataset import Dataset, Keeper, Record, ShardInfo
from feeder.records.keys import FormatName, RecordKeys
from feeder.records.objects import Reading
from feeder.records.seek import SeekCounters, SeekFiles, SeekMode

__all__ = [
    "Dataset",
    "FormatName",
    "Keeper",
    "Reading",
    "Record",
    "RecordKeys",
    "SeekCounters",
    "SeekFiles",
    "SeekMode",
    "ShardInfo",
]
