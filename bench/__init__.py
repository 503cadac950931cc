"""What feeder's speed is measured with; runs from a checkout and is not part of the wheel."""
