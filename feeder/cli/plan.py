"""`feeder plan`: what a run would take, computed beforehand."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feeder.cli.data import clean_on_sigterm
from feeder.cli.options import add_record_options, amount, positive, record_format, record_keys
from feeder.errors import ConfigError
from feeder.figures import number

if TYPE_CHECKING:
    from feeder.advice.capacity import Costs, Demand, Forecast, Host
    from feeder.trainer.grid import Grid
    from feeder.trainer.traffic import Cost

__all__ = ["register"]

RESNET50_PARAMETERS = 25_557_032

IMAGENET_RECORDS, IMAGENET_BYTES = 1_281_167, 110_000
"""Training images of ILSVRC 2012, and what one weighs on average (feeder.records.synth has the sample)."""

_INPUT = """\
What it takes to feed trainers at a rate: cores, memory, disk reads and network of each host that runs a
worker, for plain data, data with seek points, and data that is decoded in the cache; what of a host is used
up first, and at which rate; and how many such hosts it takes. What an image costs comes from rows of feeder
bench (--from), or is measured on this machine, for some ten seconds in all. `feeder plan --rate ...` is the
same as `feeder plan input --rate ...`.
"""
_INPUT_EXAMPLES = """\
examples:
  feeder plan --rate 1.05e6 --hosts 128                    measures this machine with pictures of its own
  feeder plan --rate 1.05e6 --hosts 128 --cores 96 --memory 340 --images photos/
  feeder bench service --input photos/ --json > rows.jsonl
  feeder bench cache --input photos/ --json >> rows.jsonl
  feeder plan --rate 40000 --remote --from rows.jsonl --cores 32 --network 25 --disk 2000
"""

_COLLECTIVES = """\
Steps and bytes of each way to sum gradients over a mesh of replicas, by the cost model of rings
(feeder.trainer.traffic). "bytes a link" is what a replica sends along the dimension that carries more.
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "plan",
        help="compute what a run would take",
        description="Computes what a run would take. Without the name of a plan it is `input`: see\n"
        "`feeder plan input --help`.",
        epilog="examples:\n  feeder plan --rate 1.05e6 --hosts 128\n  feeder plan collectives --mesh 32x32\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    plans = parser.add_subparsers(title="plans", metavar="PLAN", required=True)
    parser.set_defaults(otherwise="input")
    _register_input(plans)
    collectives = plans.add_parser(
        "collectives",
        help="steps and bytes of gradient sums",
        description=_COLLECTIVES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    collectives.add_argument("--mesh", required=True, metavar="XxY", help="replicas, such as 32x32")
    collectives.add_argument(
        "--params",
        type=int,
        default=RESNET50_PARAMETERS,
        metavar="N",
        help="float32 parameters of the model (default: %(default)s, ResNet-50 with 1000 classes)",
    )
    collectives.add_argument("--json", action="store_true", help="print JSON instead of tables")
    collectives.set_defaults(run=_collectives)


def _register_input(plans: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = plans.add_parser(
        "input",
        help="hosts, cores, memory, disk and network for a rate of images",
        description=_INPUT,
        epilog=_INPUT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--rate", type=amount, required=True, metavar="R", help="images a second, of all hosts"
    )
    parser.add_argument(
        "--hosts", type=positive, default=1, metavar="N", help="that run a worker each (default: %(default)s)"
    )
    parser.add_argument(
        "--remote",
        action="store_true",
        help="the trainers are other hosts (default: one is on each host, and shares its memory)",
    )
    parser.add_argument(
        "--image-size",
        type=positive,
        metavar="S",
        help="output side in pixels (default: that of the rows, or 224)",
    )
    parser.add_argument("--output", choices=("rgb", "yuv420"), default="rgb", help="(default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    data = parser.add_argument_group("data (default: ImageNet's training set)")
    data.add_argument(
        "--dataset", action="append", metavar="PATTERN", help="shards: their indexes say records and bytes"
    )
    data.add_argument("--records", type=positive, metavar="N", help="in place of what the index says")
    data.add_argument(
        "--record-bytes", type=amount, metavar="B", help="mean of a record, in place of the index's"
    )
    costs = parser.add_argument_group("what an image costs")
    source = costs.add_mutually_exclusive_group()
    source.add_argument(
        "--from",
        dest="rows",
        type=Path,
        action="append",
        metavar="FILE",
        help="rows of feeder bench service, cache, decode or wire --json; may be given many times",
    )
    source.add_argument(
        "--images",
        type=Path,
        metavar="DIR",
        help="measure here, with these (default: pictures as feeder synth's)",
    )
    costs.add_argument(
        "--seconds",
        type=amount,
        default=1.5,
        metavar="S",
        help="that each column is measured for (default: %(default)s)",
    )
    host = parser.add_argument_group("what a host has (default: cores and memory of what was measured)")
    host.add_argument("--cores", type=amount, metavar="N", help="for the worker, and a client beside it")
    host.add_argument("--memory", type=amount, metavar="GB", help="for the worker and its cache, 10^9 bytes")
    host.add_argument(
        "--disk", type=amount, metavar="MB/S", help="that storage gives to it, 10^6 bytes a second"
    )
    host.add_argument("--network", type=amount, metavar="GBIT/S", help="that it sends, 10^9 bits a second")
    add_record_options(parser)
    parser.set_defaults(run=clean_on_sigterm(_input))


def _input(args: argparse.Namespace) -> int:
    from feeder.advice.capacity import Demand, Host, forecast
    from feeder.advice.costs import costs_of_rows, read_rows
    from feeder.spec import StreamSpec

    costs: Costs | None = None
    size: int = args.image_size or 224
    if args.rows is not None:
        costs, size = costs_of_rows(read_rows(args.rows), remote=args.remote, size=args.image_size)
        if args.output != "rgb":
            note = "the rows are of rgb: CPU times are those of it, bytes those of " + args.output
            costs = dataclasses.replace(costs, notes=(*costs.notes, note))
    spec = StreamSpec(dataset="plan", seed=0, global_batch=1, lanes=1, image_size=size, output=args.output)
    records, mean_bytes, data_source = _data(args)
    if costs is None:
        from feeder.cli.measure import measure

        costs = measure(
            args.images,
            size=size,
            output=args.output,
            remote=args.remote,
            seconds=args.seconds,
            progress=_progress(),
        )
    demand = Demand(args.rate, args.hosts, records, mean_bytes, spec.image_bytes, args.remote)
    host = Host(
        cores=args.cores or costs.cores,
        memory_bytes=args.memory * 1e9 if args.memory else costs.memory_bytes,
        disk=args.disk and args.disk * 1e6,
        network=args.network and args.network * 1e9 / 8,
    )
    columns = forecast(demand, costs, host)
    if args.json:
        print(json.dumps(_input_values(demand, data_source, costs, host, columns, size, args.output)))
    else:
        print(_input_text(demand, data_source, costs, host, columns, f"{size} pixels, {args.output}"))
    return 0


def _progress() -> Callable[[str], None]:
    if not sys.stderr.isatty():
        return lambda text: None
    return lambda text: print(f"feeder: {text} ...", file=sys.stderr)


def _data(args: argparse.Namespace) -> tuple[int, float, str]:
    """Records, mean bytes of one, and where that comes from."""
    records, mean_bytes, source = IMAGENET_RECORDS, float(IMAGENET_BYTES), "ImageNet's training set"
    if args.dataset is not None:
        from feeder.records import Dataset

        with Dataset.open(
            "plan",
            args.dataset,
            keys=record_keys(args),
            index_dir=args.index_dir,
            format_name=record_format(args),
            progress=sys.stderr.isatty(),
        ) as dataset:
            records = len(dataset)
            mean_bytes = dataset.nbytes / records
            source = f"the index of {', '.join(args.dataset)}"
    if args.records is not None or args.record_bytes is not None:
        source += ", as --records and --record-bytes say"
    return args.records or records, args.record_bytes or mean_bytes, source


def _input_values(
    demand: Demand,
    data_source: str,
    costs: Costs,
    host: Host,
    columns: list[Forecast],
    size: int,
    output: str,
) -> dict[str, Any]:
    return {
        "demand": {**dataclasses.asdict(demand), "image_size": size, "output": output, "data": data_source},
        "costs": dataclasses.asdict(costs),
        "host": dataclasses.asdict(host),
        "columns": [
            {
                **dataclasses.asdict(column),
                # JSON knows no infinity.
                "limits": {name: _finite(value) for name, value in column.limits.items()},
                "breaks_at": _finite(column.breaks_at),
            }
            for column in columns
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


_COLUMN_NAMES = {"plain": "plain", "seek": "seek points", "cached": "cached"}


def _input_text(
    demand: Demand, data_source: str, costs: Costs, host: Host, columns: list[Forecast], image: str
) -> str:
    from feeder.trainer.table import table

    where = "sent to trainers on other hosts" if demand.remote else "each with its trainer beside it"
    hosts = f"{demand.hosts:,} host{'s' * (demand.hosts > 1)}"
    lines = [
        f"{demand.rate:,.0f} images/s of {hosts}, {demand.rate / demand.hosts:,.0f} of each; {where}",
        f"image  {image}, {demand.image_bytes:,} bytes",
        f"data   {demand.records:,} records of {demand.mean_bytes:,.0f} bytes ({data_source})",
        f"costs  {costs.source}",
        "",
    ]
    rows = [
        ("of each host", *(_COLUMN_NAMES[column.column] for column in columns), "it has"),
        (
            "CPU time of an image, us",
            *(f"{costs.worker_us[column.column]:,.0f}" for column in columns),
            "" if demand.remote else f"and {costs.consumer_us:,.0f} to receive",
        ),
        ("cores", *(f"{column.need.cores:,.1f}" for column in columns), _has(host.cores)),
        (
            "memory, GB, at most",
            *(f"{column.need.memory / 1e9:,.1f}" for column in columns),
            _has(host.memory_bytes, 1e9),
        ),
        (
            "disk reads, MB/s",
            *(f"{column.need.disk / 1e6:,.0f}" for column in columns),
            _has(host.disk, 1e6),
        ),
        (
            "network out, Gbit/s",
            *(f"{column.need.network * 8 / 1e9:,.1f}" for column in columns),
            _has(host.network, 1e9 / 8),
        ),
        (f"can {hosts} do it", *("yes" if column.holds else "no" for column in columns), ""),
        ("what breaks first", *(column.breaks or "nothing" for column in columns), ""),
        ("at images/s of all", *(_rate(column) for column in columns), ""),
        (
            "hosts that it takes",
            *("none do" if column.hosts is None else f"{column.hosts:,}" for column in columns),
            "",
        ),
    ]
    lines += [table(rows), ""]
    lines += [f"{_COLUMN_NAMES[column.column]}: {_why(column, demand, host)}" for column in columns]
    if demand.remote and columns:
        lines.append(
            f"trainers: receiving takes {columns[0].receive_cores:,.1f} cores of all of them together, and "
            f"{demand.rate * demand.image_bytes * 8 / 1e9:,.0f} Gbit/s of pixels in"
        )
    if any(column.column == "cached" for column in columns):
        lines.append(
            "cached: from the second epoch on; the epoch that fills the cache costs what plain data does"
        )
    return "\n".join(lines + list(costs.notes))


def _has(value: float | None, unit: float = 1.0) -> str:
    return "not said" if value is None else number(value / unit)


def _rate(column: Forecast) -> str:
    if column.breaks is None:
        return "any"
    return f"{column.breaks_at:,.0f}" if column.breaks_at else "standing still"


def _why(column: Forecast, demand: Demand, host: Host) -> str:
    """The tightest resource in words."""
    if column.breaks is None:
        return "nothing that was said of a host runs out"
    if not column.breaks_at:
        return (
            f"memory breaks first, at any rate: {column.need.memory / 1e9:,.1f} GB are wanted of each host, "
            f"which has {(host.memory_bytes or 0) / 1e9:,.1f}"
        )
    each = column.breaks_at / demand.hosts
    verb = "break" if column.breaks == "cores" else "breaks"
    return f"{column.breaks} {verb} first, at {each:,.0f} images/s of a host"


def _collectives(args: argparse.Namespace) -> int:
    from feeder.trainer.grid import Grid
    from feeder.trainer.traffic import costs

    if args.params < 1:
        raise ConfigError(f"--params must be at least 1, got {args.params}")
    grid = Grid.parse(args.mesh)
    schemes = costs(grid, args.params)
    if args.json:
        print(json.dumps({"mesh": str(grid), "params": args.params, "schemes": list(map(_plain, schemes))}))
    else:
        print(_tables(grid, args.params, schemes))
    return 0


def _plain(cost: Cost) -> dict[str, object]:
    return {
        "scheme": cost.scheme,
        "steps": cost.steps,
        "sent_bytes": cost.sent_bytes,
        "link_bytes": cost.link_bytes,
        "collectives": [
            {**dataclasses.asdict(collective), "steps": collective.steps, "sent_bytes": collective.sent_bytes}
            for collective in cost.collectives
        ],
    }


def _tables(grid: Grid, parameters: int, schemes: list[Cost]) -> str:
    from feeder.trainer.table import table

    title = f"sum of {parameters:,} gradients, float32, over a mesh of {grid}"
    totals = [("scheme", "steps", "bytes a replica sends", "bytes a link")] + [
        (cost.scheme, f"{cost.steps:,}", f"{cost.sent_bytes:,}", f"{cost.link_bytes:,}") for cost in schemes
    ]
    each = [("scheme", "part", "operation", "along", "ring", "payload bytes", "steps", "bytes sent")] + [
        (
            cost.scheme,
            f"{collective.part + 1}",
            collective.operation,
            collective.along,
            f"{collective.ring:,}",
            f"{collective.payload_bytes:,}",
            f"{collective.steps:,}",
            f"{collective.sent_bytes:,}",
        )
        for cost in schemes
        for collective in cost.collectives
    ]
    return f"{title}\n\n{table(totals)}\n\n{table(each)}"
