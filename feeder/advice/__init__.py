"""What a run takes and what holds it up: arithmetic on figures that others measured.

capacity.py    from costs and a wanted rate to cores, memory, disk and network: feeder plan
costs.py       costs from the rows of feeder bench
"""
