"""A JAX trainer that uses of feeder only what any user can import: `feeder.connect` and `feeder.client.jax`.

config.py      what a run is made of; configs/ holds ready ones
plan.py        what a run would be: feeder train --dry-run
model.py       ResNet
alexnet.py     AlexNet with batch normalisation
optimizer.py   learning rate over the steps, SGD with momentum
lars.py        LARS
step.py        the compiled train and eval steps
watch.py       results of the step before, and what stops a run
chrono.py      where the time went
checkpoint.py  weights and data position together
record.py      metrics as JSON lines and for TensorBoard; plot.py draws them
profiler.py    a trace of some steps
progress.py    the live line and the table at the end
loop.py        the loop
"""
