"""A small convolutional net in PyTorch, DistributedDataParallel, fed by feeder.

    torchrun --standalone --nproc-per-node 2 examples/pytorch_ddp.py \\
        --connect 127.0.0.1:50051 --dataset train --classes 10

Needs `pip install . torch` in the checkout. Each process is one consumer: it gets its own part of every
global batch, and a position that any process saves is that of all.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from feeder.client.torch import FeederDataset

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)


def net(classes: int) -> nn.Module:
    """Normalised images to scores of the classes."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connect", required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(net(args.classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    dataset = FeederDataset(
        args.connect,
        args.dataset,
        batch_size=args.batch_size,
        consumer_index=rank,
        consumer_count=world,
        image_size=args.image_size,
        epochs=args.epochs,
    )
    loader = DataLoader(dataset, batch_size=None)  # batches are made by feeder's workers, ahead of time

    seen = 0
    for epoch in range(args.epochs):
        for images, labels, _mask, _position in loader:
            loss = nn.functional.cross_entropy(model((images / 255 - MEAN) / STD), labels)
            optimizer.zero_grad()
            loss.backward()  # averages the gradients of all processes
            optimizer.step()
            seen += len(labels)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    print(f"process {rank} of {world}: {seen} images", flush=True)
    dataset.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
