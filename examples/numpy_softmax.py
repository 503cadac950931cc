"""Softmax regression in plain NumPy, fed by feeder: no framework, and a run that can stop and go on.

    python examples/numpy_softmax.py --connect 127.0.0.1:50051 --dataset train --classes 10 --save run.npz

Needs `pip install .` in the checkout alone. Run it again, and it goes on after the last epoch that it
finished.
"""

import argparse
import json
import os

import numpy as np

import feeder

SIDE = 32
CELLS = 4  # each image becomes the mean colours of 4 x 4 cells


def features(images: np.ndarray) -> np.ndarray:
    """uint8 [B, 32, 32, 3] to float32 [B, 4 * 4 * 3], around 0."""
    size = SIDE // CELLS
    cells = images.reshape(-1, CELLS, size, CELLS, size, 3).mean(axis=(2, 4))
    return (cells.reshape(len(images), -1) / 127.5 - 1).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connect", required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--save")
    args = parser.parse_args()

    weights = np.zeros((CELLS * CELLS * 3 + 1, args.classes), np.float32)
    start = None
    if args.save and os.path.exists(args.save):
        with np.load(args.save) as saved:
            weights, start = saved["weights"], json.loads(str(saved["position"]))

    with feeder.connect(args.connect) as client:
        stream = client.stream(
            args.dataset, batch_size=args.batch_size, epochs=args.epochs, image_size=SIDE, start=start
        )
        epoch, right = stream.position.epoch, []
        for batch in stream:
            x = np.c_[features(batch.images), np.ones(len(batch.images), np.float32)]
            scores = x @ weights
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            right.append(np.mean(scores.argmax(axis=1) == batch.labels))
            weights -= (
                args.rate / len(x) * x.T @ (shares - np.eye(args.classes, dtype=np.float32)[batch.labels])
            )
            if batch.position.epoch != epoch:  # that was the last batch of an epoch
                print(f"epoch {epoch}: {np.mean(right):.1%} right", flush=True)
                epoch, right = batch.position.epoch, []
                if args.save:
                    np.savez(args.save, weights=weights, position=json.dumps(batch.position.to_dict()))


if __name__ == "__main__":
    main()
