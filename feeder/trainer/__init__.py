"""A JAX trainer that uses of feeder only what any user can import: `feeder.connect` and `feeder.client.jax`.

config.py      what a run is made of; configs/ holds ready ones
model.py       ResNet
optimizer.py   learning rate over the steps, SGD with momentum
step.py        the compiled train and eval steps
chrono.py      where the time went
checkpoint.py  weights and data position together
progress.py    the live line and the table at the end
loop.py        the loop
"""
