"""A JAX trainer that uses of feeder only what any user can import: `feeder.connect` and `feeder.client.jax`.

config.py      what a run is made of; configs/ holds ready ones
plan.py        what a run would be: feeder train --dry-run
model.py       ResNet
alexnet.py     AlexNet with batch normalisation
optimizer.py   learning rate over the steps, SGD with momentum
lars.py        LARS
step.py        the train and eval steps of a replica
evaluate.py    accuracy on a whole data set
watch.py       results of the step before, and what stops a run
chrono.py      where the time went
checkpoint.py  weights and data position together
record.py      metrics as JSON lines and for TensorBoard; plot.py draws them
profiler.py    a trace of some steps
progress.py    the live line
table.py       tables
loop.py        the loop

On many devices:

grid.py        replicas in X by Y, and which of them share batch-norm statistics
replicas.py    the same as a JAX mesh
gradients.py   sums of gradients in one or two dimensions
sharded.py     the optimiser's update in between, on a shard of each replica
traffic.py     what these cost, in steps and bytes
parallel.py    the steps of all replicas together
hosts.py       several processes
"""
