"""Experiments about training, on what feeder serves; how feeder itself is measured is one folder up."""
