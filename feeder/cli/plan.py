"""`feeder plan`: what a run would take, computed beforehand."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING

from feeder.errors import ConfigError

if TYPE_CHECKING:
    from feeder.trainer.grid import Grid
    from feeder.trainer.traffic import Cost

__all__ = ["register"]

RESNET50_PARAMETERS = 25_557_032

_DESCRIPTION = """\
Steps and bytes of each way to sum gradients over a mesh of replicas, by the cost model of rings
(feeder.trainer.traffic). "bytes a link" is what a replica sends along the dimension that carries more.
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("plan", help="compute what a run would take", allow_abbrev=False)
    plans = parser.add_subparsers(title="plans", metavar="PLAN", required=True)
    collectives = plans.add_parser(
        "collectives",
        help="steps and bytes of gradient sums",
        description=_DESCRIPTION,
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
