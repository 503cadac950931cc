"""Generated from protos/feeder/v1/feeder.proto by `make protos`; never edited."""
