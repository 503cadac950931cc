"""A small convolutional net in Flax NNX, fed by feeder: transfer overlapped, normalised on the device.

    python examples/flax_nnx.py --connect 127.0.0.1:50051 --dataset train --classes 10

Needs `pip install . flax optax jax` in the checkout. Runs on whatever JAX finds; on several devices each
batch is spread over them.
"""

import argparse

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import feeder
from feeder.client.jax import normalize, prefetch_to_device


class Net(nnx.Module):
    """Images to scores of the classes."""

    def __init__(self, classes: int, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(3, 16, (3, 3), strides=2, rngs=rngs)
        self.second = nnx.Conv(16, 32, (3, 3), strides=2, rngs=rngs)
        self.last = nnx.Linear(32, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.second(nnx.relu(self.first(x))))
        return self.last(x.mean(axis=(1, 2)))


@nnx.jit
def train_step(model: Net, optimizer: nnx.Optimizer, images: jax.Array, labels: jax.Array) -> jax.Array:
    """One step; the uint8 images are normalised here, where it costs nothing."""

    def loss_of(model: Net) -> jax.Array:
        scores = model(normalize(images, jnp.float32))
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connect", required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()

    model = Net(args.classes, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
    mesh = Mesh(jax.devices(), ("data",))
    by_batch = NamedSharding(mesh, PartitionSpec("data"))

    with feeder.connect(args.connect) as client:
        stream = client.stream(
            args.dataset, batch_size=args.batch_size, image_size=args.image_size, epochs=args.epochs
        )
        losses = []
        for batch in prefetch_to_device(stream, by_batch):
            losses.append(train_step(model, optimizer, batch.images, batch.labels))
        print(f"{len(losses)} steps, loss {float(losses[0]):.3f} to {float(losses[-1]):.3f}")
        print(stream.ledger().totals)


if __name__ == "__main__":
    main()
