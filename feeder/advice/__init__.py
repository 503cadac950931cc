"""What a run takes and what holds it up: reckoned from figures that others measured.

capacity.py    from costs and a wanted rate to cores, memory, disk and network: feeder plan
costs.py       costs from the rows of feeder bench
watched.py     what a worker and its consumers did between two looks at it
diagnosis.py   which stage holds a job up: feeder doctor, feeder top, the status page
"""
