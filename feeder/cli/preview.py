"""`feeder preview`: a picture of what a trainer would see."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from feeder.cli.options import (
    add_client_options,
    add_dataset_options,
    client_credentials,
    record_format,
    record_keys,
)
from feeder.errors import ConfigError, printable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from feeder.client import Client

__all__ = ["register"]


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "preview",
        help="a picture of what a trainer would see",
        description="Writes a contact sheet (PNG) of the first batch, its labels under the images.",
        epilog="examples:\n"
        "  feeder preview --data /data/train/ -o sheet.png\n"
        "  feeder preview --data '/data/val-*' --augment eval --images 64 -o sheet.png\n"
        "  feeder preview --connect localhost:50051 --dataset train -o sheet.png\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--data", action="append", metavar="PATTERN", help="shards: a file, a glob or a folder"
    )
    source.add_argument("--connect", metavar="ADDR", help="workers to ask instead")
    parser.add_argument(
        "--dataset", metavar="NAME", help="which data set of the workers (default: the only one they serve)"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="PNG", help="file to write")
    parser.add_argument("--images", type=int, default=16, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument(
        "--image-size", type=int, default=224, metavar="N", help="side in pixels (default: %(default)s)"
    )
    parser.add_argument(
        "--pixels",
        choices=["rgb", "yuv420"],
        default="rgb",
        help="how the images are made; yuv420 has half the bytes, and is shown as RGB again (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--augment",
        choices=["train", "eval", "none"],
        default="train",
        help="train: a random crop, perhaps mirrored; eval: the centre; none: the whole image, stretched "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--sampler",
        choices=["torchvision", "inception"],
        default="torchvision",
        help="whose crops: torchvision's, or those of TensorFlow's reference ResNet (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="of the shuffle and of the crops (default: %(default)s)",
    )
    add_dataset_options(parser)
    add_client_options(parser)
    parser.set_defaults(run=_preview)


def _preview(args: argparse.Namespace) -> int:
    from feeder.cli.sheet import label_names, save_sheet
    from feeder.client.pixels import yuv420_to_rgb

    if not 1 <= args.images <= 1024:
        raise ConfigError(f"--images must be in [1, 1024], got {args.images}")
    if args.connect is None and args.dataset is not None:
        raise ConfigError("--dataset goes with --connect: it says which of the workers' data sets")
    images, labels = _remote_batch(args) if args.connect else _local_batch(args)
    if args.pixels == "yuv420":
        images = yuv420_to_rgb(images)
    names = label_names(args.data or [])
    save_sheet(args.output, images, [names.get(label, str(label)) for label in labels])
    made = "1 image" if len(images) == 1 else f"{len(images)} images"
    if len(images) < args.images:
        made += f" of the {args.images} asked for: the others are bad, or the data set has no more"
    print(f"{args.output}: {made}")
    return 0


def _remote_batch(args: argparse.Namespace) -> tuple[NDArray[np.uint8], list[int]]:
    import feeder

    with (
        feeder.connect(args.connect, credentials=client_credentials(args)) as client,
        client.stream(
            _only_dataset(client) if args.dataset is None else args.dataset,
            batch_size=args.images,
            seed=args.seed,
            image_size=args.image_size,
            output=args.pixels,
            augment=args.augment,
            sampler=args.sampler,
            remainder="pad",
        ) as stream,
    ):
        batch = next(iter(stream))
        return batch.images[batch.mask], batch.labels[batch.mask].tolist()


def _only_dataset(client: Client) -> str:
    served = sorted({name for worker in client.workers.values() for name in worker.datasets})
    if len(served) != 1:
        names = ", ".join(served) or "none"
        raise ConfigError(f"say which data set with --dataset: the workers serve {names}")
    return served[0]


def _local_batch(args: argparse.Namespace) -> tuple[NDArray[np.uint8], list[int]]:
    import numpy as np

    from feeder.batch import ChunkMaker
    from feeder.decode import open_decoder
    from feeder.order import default_lanes
    from feeder.records import Dataset
    from feeder.spec import StreamSpec
    from feeder.worker.cpus import decode_threads

    with (
        Dataset.open(
            "preview",
            args.data,
            keys=record_keys(args),
            format_name=record_format(args),
            index_dir=args.index_dir,
            build=args.index_build,
            progress=sys.stderr.isatty(),
        ) as dataset,
        closing(open_decoder(decode_threads()[0], args.decoder)) as decoder,
    ):
        spec = StreamSpec(
            dataset="preview",
            global_batch=args.images,
            lanes=default_lanes(len(dataset), args.images, 1),
            seed=args.seed,
            image_size=args.image_size,
            output=args.pixels,
            augment=args.augment,
            sampler=args.sampler,
            remainder="pad",
        )
        out = np.empty((args.images, *spec.image_shape), np.uint8)
        maker = ChunkMaker(dataset, decoder, spec)
        made = maker.make(maker.fetch(0, 0, range(args.images)), out)
        for bad in made.bad:
            print(printable(f"feeder: {bad.shard}: record {bad.index}: {bad.reason}"), file=sys.stderr)
        shown = made.labels >= 0
        return out[shown], made.labels[shown].tolist()
