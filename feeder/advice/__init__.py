"""What a run takes and what holds it up: reckoned from figures that others measured.

capacity.py    from costs and a wanted rate to cores, memory, disk and network: feeder plan
costs.py       costs from the rows of feeder bench
watched.py     what workers and consumers did between two looks at them
diagnosis.py   which stage holds a job up: feeder doctor
"""
