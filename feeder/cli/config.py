"""`feeder config`: what a worker would be told, by whom, and what it can be told at all."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from feeder.cli.settings import Settings, options, variable
from feeder.cli.worker import add_worker_options, worker_config

__all__ = ["register"]

TABLE = "worker"

_PAGE = """\
# Settings of a worker

This page is what `feeder config reference` prints; a test compares the two.

A setting has one name everywhere: a flag of `feeder worker`, a variable of the environment, a line of a TOML
file that `--config FILE` or `FEEDER_CONFIG` names. A flag wins over the environment, the environment over the
file, the file over the default. What may be given many times is taken whole from the first that has it.
Relative names of files count from the folder in which the worker was started, also in a file of settings.

```toml
[worker]
listen = "0.0.0.0:50051"
tls-cert = "/etc/feeder/cert.pem"
tls-key = "/etc/feeder/key.pem"
threads = 8
cache-bytes = "64GiB"
warm = true

[worker.dataset]
train = "/data/train-*"
validation = ["/data/val-a-*", "/data/val-b-*"]
```

In the environment, several values of one setting are words as a shell splits them:
`FEEDER_DATASET='train=/data/train-* validation=/data/val-*'`. Switches are `true` or `false`.

`feeder config show` takes the flags of `feeder worker`, and prints what they, environment and file come to,
checked as by a worker, and where each value is from; secrets in URLs are left out. It opens nothing that they
name: neither shards nor certificates or tokens. An unknown name in a file is an error; variables that start
with `FEEDER_` and name no setting are listed, not refused, as Kubernetes makes some for a service; the
log of a worker names those that look mistyped.

| setting | environment | default | what it says |
|---|---|---|---|
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "config", help="what a worker would be told, and by whom", allow_abbrev=False
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    show = actions.add_parser(
        "show",
        help="the effective settings of a worker, and where each comes from",
        description="Prints, as a file for --config, what `feeder worker` would do with these flags, this\n"
        "environment and this file. Exit code 2 where it would refuse them; shards, certificates and\n"
        "tokens are not opened.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_worker_options(show)
    show.add_argument("--json", action="store_true", help="JSON instead of TOML")
    show.set_defaults(run=_show)
    reference = actions.add_parser(
        "reference", help="all settings, as a page in Markdown", allow_abbrev=False
    )
    reference.set_defaults(run=_reference)


def _worker_options() -> tuple[argparse.ArgumentParser, dict[str, argparse.Action]]:
    parser = argparse.ArgumentParser(add_help=False)
    add_worker_options(parser)
    return parser, options(parser)


def _show(args: argparse.Namespace) -> int:
    from feeder.records.locations import redact

    worker_config(args)
    settings: Settings = args.settings
    values: dict[str, Any] = {}
    for name, action in _worker_options()[1].items():
        value = getattr(args, action.dest)
        if isinstance(value, list):
            values[name] = [redact(one) for one in value]
        else:
            values[name] = str(value) if isinstance(value, Path) else value
    if args.json:
        shown = {
            name: {"value": value, "source": settings.sources.get(name, "default")}
            for name, value in values.items()
        }
        print(json.dumps({TABLE: shown, "unknown": list(settings.unknown)}, indent=2))
        return 0
    lines = {name: f"{name} = {_toml(value)}" for name, value in values.items() if value is not None}
    lines |= {name: f"# {name} is not set" for name, value in values.items() if value is None}
    width = min(48, max(len(line) for name, line in lines.items() if name in settings.sources))
    print(f"[{TABLE}]")
    for name in values:
        print(f"{lines[name]:{width}}  # {settings.sources.get(name, 'default')}")
    for name in settings.unknown:
        print(f"# {settings.doubt(name)}")
    return 0


def _toml(value: Any) -> str:
    # A JSON string, number, boolean or list of strings is the same in TOML, but for this character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _reference(args: argparse.Namespace) -> int:
    parser, known = _worker_options()
    formatter = parser._get_formatter()
    print(_PAGE, end="")
    for name, action in known.items():
        text = formatter._expand_help(action).replace("|", "\\|").replace("*", "\\*")
        default = "" if action.default is None else f"`{_toml(action.default)}`"
        print(f"| `{name}` | `{variable(name)}` | {default} | {text} |")
    return 0
