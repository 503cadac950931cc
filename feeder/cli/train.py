"""`feeder train`: the bundled JAX trainer as a client of data workers."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feeder.cli.options import add_client_options, amount, client_credentials
from feeder.errors import ConfigError

if TYPE_CHECKING:
    from feeder.trainer.config import TrainConfig
    from feeder.trainer.grid import Grid
    from feeder.trainer.loop import TrainResult

__all__ = ["register"]

EXIT_FOUND_BAD = 1
IMAGENET = 1_281_167

_DESCRIPTION = """\
Trains a ResNet or an AlexNet on what data workers serve. A ready configuration says how; options change
parts of it. Shows a live line on stderr, and a table on stdout at the end. --dry-run shows what a run would
be: steps, learning rates, memory, and how fast its input must come.
"""

_EXAMPLES = """\
examples:
  feeder train --connect localhost:50051 --dataset train --eval-dataset validation --config tiny
  feeder train --connect dns:feeder:50051 --dataset train --eval-dataset validation --config resnet50 \\
      --checkpoint-dir /data/run1
  feeder train ... --checkpoint-dir /data/run1 --resume
  feeder train ... --config resnet50-1k --mesh 4x2 --norm-group 2          # eight devices of one host
  feeder train ... --mesh 32x32 --distributed                              # the same on each host of a pod
  feeder train --config resnet50-lars-32k --dry-run --devices 1024 --step-time 0.031
  feeder train ... --config tiny --seconds 60 --require accuracy=4x    # exit 1 under 4 times chance
"""

_CHANGEABLE = (
    "classes",
    "epochs",
    "steps",
    "batch_size",
    "image_size",
    "pixels",
    "base_rate",
    "rate",
    "space_to_depth",
    "warmup_steps",
    "seed",
    "checkpoint_every",
    "eval_every",
    "norm_span",
)
"""Fields of the configuration that have an option of the same name."""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "train",
        help="train a ResNet or an AlexNet on what workers serve",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--connect", metavar="ADDR", help="workers: host:port,host:port")
    parser.add_argument("--dataset", metavar="NAME", help="training set, as the workers name it")
    parser.add_argument("--eval-dataset", metavar="NAME", help="evaluation set (default: no evaluation)")
    parser.add_argument(
        "--config",
        required=True,
        metavar="NAME",
        help="tiny, resnet50, resnet50-lars-32k, alexnet-bn-8k ...; any other name lists them",
    )
    changes = parser.add_argument_group("changes to the configuration")
    changes.add_argument("--classes", type=int, metavar="N", help="labels are in [0, N)")
    length = changes.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=int, metavar="N", help="length of the run in passes over the data")
    length.add_argument("--steps", type=int, metavar="N", help="length of the run in steps")
    changes.add_argument("--batch-size", type=int, metavar="N", help="images a step")
    changes.add_argument("--image-size", type=int, metavar="N", help="side in pixels")
    changes.add_argument(
        "--pixels",
        choices=("rgb", "yuv420"),
        help="how images come; yuv420 is half the bytes, and made RGB on the device",
    )
    rate = changes.add_mutually_exclusive_group()
    rate.add_argument("--base-rate", type=float, metavar="X", help="learning rate for a batch of 256")
    rate.add_argument("--rate", type=float, metavar="X", help="peak learning rate, whatever the batch")
    changes.add_argument(
        "--space-to-depth",
        action="store_const",
        const=True,
        help="compute the first layer on 2x2 blocks of pixels: the same numbers, quicker on a TPU",
    )
    changes.add_argument("--warmup-steps", type=int, metavar="N", help="steps until the rate is at its peak")
    changes.add_argument("--seed", type=int, metavar="N", help="of weights and data order")
    changes.add_argument("--checkpoint-every", type=int, metavar="N", help="steps between checkpoints")
    changes.add_argument("--eval-every", type=int, metavar="N", help="steps between evaluations")
    changes.add_argument("--norm-span", type=int, metavar="N", help="samples of a batch-norm statistic")
    devices = parser.add_argument_group(
        "many devices, in one process or in several that get the same command line but --process-index"
    )
    devices.add_argument("--mesh", metavar="XxY", help="replicas, such as 4x2 or 8 (default: one device)")
    devices.add_argument(
        "--norm-group", type=int, metavar="G", help="the span as a number of replicas, needs --mesh"
    )
    devices.add_argument(
        "--gradient-sum",
        choices=("psum", "1d", "2d"),
        help="how gradients are summed (default: 2d where the mesh is); see feeder plan collectives",
    )
    devices.add_argument(
        "--shard-update", action="store_true", help="each replica updates its part of the parameters"
    )
    devices.add_argument(
        "--distributed", action="store_true", help="join the processes that the cluster's environment names"
    )
    devices.add_argument("--coordinator", metavar="HOST:PORT", help="join: where process 0 listens")
    devices.add_argument("--processes", type=int, metavar="N", help="join: how many there are")
    devices.add_argument("--process-index", type=int, metavar="I", help="join: which this is, from 0")
    parser.add_argument("--seconds", type=amount, metavar="S", help="stop after so many seconds of training")
    parser.add_argument("--checkpoint-dir", type=Path, metavar="DIR", help="keep checkpoints there")
    parser.add_argument(
        "--resume", action="store_true", help="go on from the newest checkpoint, with exactly the next steps"
    )
    parser.add_argument(
        "--log-dir",
        type=Path,
        metavar="DIR",
        help="write metrics.jsonl there, TensorBoard files where tensorboardX is installed, and a plot where "
        "matplotlib is",
    )
    parser.add_argument(
        "--profile-dir", type=Path, metavar="DIR", help="write a profiler trace of steps 11 to 20 there"
    )
    parser.add_argument(
        "--compile-cache", type=Path, metavar="DIR", help="keep compiled code there, for a quicker next start"
    )
    parser.add_argument(
        "--require",
        action="append",
        default=[],
        type=_requirement,
        metavar="WHAT=Nx",
        help="exit code 1 unless accuracy on the evaluation set is at least N times chance (accuracy=4x), or "
        "the final training loss at most N times that of guessing, ln(classes) (loss=0.5x)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of a table")
    dry = parser.add_argument_group("dry run, without workers or accelerator")
    dry.add_argument("--dry-run", action="store_true", help="show what the run would be, and end")
    dry.add_argument(
        "--records",
        type=int,
        default=IMAGENET,
        metavar="N",
        help="training images (default: ImageNet's %(default)s)",
    )
    dry.add_argument(
        "--devices", type=int, metavar="N", help="that share a batch (default: those of --mesh, or 1)"
    )
    dry.add_argument(
        "--step-time", type=amount, metavar="S", help="seconds a step: how fast must input come?"
    )
    add_client_options(parser)
    parser.set_defaults(run=_train)


def _requirement(text: str) -> tuple[str, float]:
    what, _, factor = text.partition("=")
    try:
        times = float(factor.removesuffix("x"))
    except ValueError:
        times = math.nan
    if what not in ("accuracy", "loss") or not factor.endswith("x") or not 0 < times < math.inf:
        raise argparse.ArgumentTypeError(f"must be like accuracy=4x or loss=0.5x, got {text!r}")
    return what, times


def _train(args: argparse.Namespace) -> int:
    if args.dry_run:
        return _dry_run(args)
    for option in ("connect", "dataset"):
        if getattr(args, option) is None:
            raise ConfigError(f"--{option} is missing: training needs workers (without: --dry-run)")
    for option in ("devices", "step_time"):
        if getattr(args, option) is not None:
            raise ConfigError(
                f"--{option.replace('_', '-')} goes with --dry-run only; devices to train on are --mesh"
            )
    if args.eval_dataset is None and any(what == "accuracy" for what, _ in args.require):
        raise ConfigError("--require accuracy=... needs an --eval-dataset")
    import jax

    from feeder.trainer import plot
    from feeder.trainer.grid import Grid
    from feeder.trainer.hosts import join
    from feeder.trainer.loop import train
    from feeder.trainer.progress import Progress

    grid = None if args.mesh is None else Grid.parse(args.mesh)
    config = _config(args, grid)
    place = (args.coordinator, args.processes, args.process_index)
    if args.distributed or any(part is not None for part in place):
        join(*place)
    if args.compile_cache is not None:
        jax.config.update("jax_compilation_cache_dir", os.fspath(args.compile_cache))  # type: ignore[no-untyped-call]
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # type: ignore[no-untyped-call]
    with closing(Progress(sys.stderr, config.batch_size)) as progress:
        result = train(
            config,
            args.connect,
            args.dataset,
            args.eval_dataset,
            credentials=client_credentials(args),
            mesh=grid,
            gradient_sum=args.gradient_sum,
            shard_update=args.shard_update,
            checkpoint_dir=args.checkpoint_dir,
            resume=args.resume,
            max_seconds=args.seconds,
            log_dir=args.log_dir,
            profile_dir=args.profile_dir,
            listener=progress.step,
            note=progress.note,
        )
    if args.log_dir is not None and jax.process_index() == 0 and plot.available():
        print(f"plot of the run: {plot.plot(args.log_dir)}", file=sys.stderr)
    failures = _failures(args.require, config.classes, result)
    if args.json:
        print(json.dumps({"config": args.config, **result.to_dict(), "failed": failures}))
    else:
        print(_summary(args, config, result))
    for failure in failures:
        print(f"feeder: {failure}", file=sys.stderr)
    return EXIT_FOUND_BAD if failures else 0


def _dry_run(args: argparse.Namespace) -> int:
    import jax

    from feeder.trainer.grid import Grid
    from feeder.trainer.plan import make_plan

    # Shapes and a few rates are all it takes; an accelerator may belong to somebody else.
    jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]
    grid = None if args.mesh is None else Grid.parse(args.mesh)
    config = _config(args, grid)
    devices = 1 if args.devices is None else args.devices
    if grid is not None:
        if args.devices is not None and args.devices != grid.replicas:
            raise ConfigError(
                f"--mesh {args.mesh} has {grid.replicas} devices, --devices says {args.devices}: leave it out"
            )
        devices = grid.replicas
    plan = make_plan(config, args.records, devices=devices, step_s=args.step_time)
    if args.json:
        print(json.dumps({"config": args.config, **dataclasses.asdict(config), "plan": plan.to_dict()}))
    else:
        print("\n".join([f"configuration    {args.config}", *plan.lines(config)]))
    return 0


def _config(args: argparse.Namespace, grid: Grid | None = None) -> TrainConfig:
    from feeder.trainer.config import load_config

    changes: dict[str, Any] = {
        name: getattr(args, name) for name in _CHANGEABLE if getattr(args, name) is not None
    }
    if "steps" in changes:
        changes["epochs"] = None
    elif "epochs" in changes:
        changes["steps"] = None
    if "warmup_steps" in changes:
        changes["warmup_epochs"] = None
    if "rate" in changes:
        changes["base_rate"] = None
    elif "base_rate" in changes:
        changes["rate"] = None
    config = dataclasses.replace(load_config(args.config), **changes)
    if args.norm_group is None:
        return config
    if grid is None or config.norm_span is not None:
        raise ConfigError("--norm-group needs --mesh, and goes without --norm-span")
    return dataclasses.replace(config, norm_span=args.norm_group * config.batch_size // grid.replicas)


def _failures(required: list[tuple[str, float]], classes: int, result: TrainResult) -> list[str]:
    """One sentence for each requirement that the run does not meet."""
    failures = []
    for what, times in required:
        if what == "accuracy" and result.eval is not None:
            least = times / classes
            if result.eval.accuracy < least:
                failures.append(
                    f"accuracy on {result.eval.images:,} held-out images is {result.eval.accuracy:.1%}, "
                    f"required is {least:.1%} ({times:g} times chance)"
                )
        elif what == "loss":
            most = times * math.log(classes)
            if not result.loss <= most:
                failures.append(
                    f"training loss is {result.loss:.3f}, required is {most:.3f} "
                    f"({times:g} times ln {classes}, that of guessing)"
                )
    return failures


def _summary(args: argparse.Namespace, config: TrainConfig, result: TrainResult) -> str:
    from feeder.trainer.chrono import PHASES
    from feeder.trainer.table import table

    steps = f"{result.steps:,}"
    if result.steps < result.planned_steps:
        steps += f" of {result.planned_steps:,} (stopped after {args.seconds:g} s)"
    rows = [
        ("configuration", args.config),
        ("steps", steps),
        ("epochs", f"{result.epochs:.1f} of {result.records:,} images"),
        ("training loss, first step", f"{result.first_loss:.3f}"),
        ("training loss, last steps", f"{result.loss:.3f}"),
        ("accuracy on training batches, last steps", f"{result.accuracy:.1%}"),
    ]
    if result.resumed_from is not None:
        rows.insert(2, ("resumed after step", f"{result.resumed_from:,}"))
    if result.eval is not None:
        name = f"accuracy on {result.eval.images:,} images of {args.eval_dataset!r}"
        rows += [(name, f"{result.eval.accuracy:.1%}"), ("chance", f"{1 / config.classes:.1%}")]
    rows.append(("images/s while training", f"{result.images_per_s:,.0f}"))
    rows.append(("share of that waiting for input", f"{result.input_wait:.1%}"))
    if result.transfer_overlap is not None:
        rows.append(("steps whose images were on the device in time", f"{result.transfer_overlap:.1%}"))
    left_out = {
        phase
        for phase, place in (("checkpoint", args.checkpoint_dir), ("eval", args.eval_dataset))
        if place is None
    }
    rows += [
        (f"seconds {PHASES[phase]}", f"{seconds:.1f}")
        for phase, seconds in result.spent_s.items()
        if phase not in left_out
    ]
    rows += [(f"images from {address}", f"{images:,}") for address, images in result.workers.items()]
    return table([("run", "value"), *rows])
