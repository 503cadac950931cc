"""feeder keeps accelerators fed: data workers decode, crop and stream image batches to training hosts."""

__version__ = "0.1.0"
