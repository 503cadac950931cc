"""`feeder top`: what workers do, in a terminal, second by second."""

from __future__ import annotations

import argparse
import os
import select
import shutil
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Self

from feeder.cli.options import add_client_options, client_credentials
from feeder.cli.status import STATUS_TIMEOUT_S, describe
from feeder.errors import ConfigError, FeederError, printable
from feeder.figures import duration, share, short, size

if TYPE_CHECKING:
    import grpc
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    from feeder.advice.diagnosis import Verdict
    from feeder.advice.watched import Consumer, Work
    from feeder.wire.address import Address
    from feeder.wire.credentials import Credentials
    from feeder.wire.v1 import feeder_pb2 as pb

__all__ = ["register"]

PERIOD_S = 1.0
WINDOW = 10
"""Answers over which shares are taken: one second holds few chunks of a slow stream."""

ONCE = 3
"""Answers that one frame is made of: a client tells once a second how it fares, so two may hear the same."""

SPARK = 24
LEAST_WIDTH = 64
"""Columns that a worker wants beside another."""

BAR = 20
LEAVE_S = 0.1
"""For a thread whose call was cancelled to end; one that dials does later, or with the process."""

MOODS = {"trainer": "green", "nobody": "default"}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "top",
        help="what workers do, live in a terminal",
        description="Shows, each second, what workers do: rates, where time goes, who waits for whom, and\n"
        "which is the limit. q or Ctrl-C ends it. A worker's status page (--http) shows the same in a\n"
        "browser, with pictures.",
        epilog="examples:\n"
        "  feeder top host1:50051,host2:50051\n"
        "  feeder top unix:/run/feeder.sock --once     one frame, over two seconds, for scripts\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("address", metavar="ADDR", help="host:port,host:port or unix:/path")
    add_client_options(parser)
    parser.add_argument(
        "--once", action="store_true", help="one frame; exit code 1 where a worker does not answer"
    )
    parser.set_defaults(run=_top)


def _top(args: argparse.Namespace) -> int:
    from rich.console import Console

    from feeder.wire.address import parse_target

    console = Console(highlight=False)
    if not console.width:  # of COLUMNS=0, which others take for not set
        console.width = shutil.get_terminal_size().columns
    with ExitStack() as stack:
        credentials = client_credentials(args)
        watched = [
            stack.enter_context(_Watched(address, credentials)) for address in parse_target(args.address)
        ]
        if args.once:
            for worker in watched:
                worker.wait(ONCE)
            console.print(_frame(watched, console.width))
            return 1 if any(worker.error for worker in watched) else 0
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise ConfigError("feeder top wants a terminal: with --once it prints one frame anywhere")
        _live(console, watched)
    return 0


def _live(console: Console, watched: Sequence[_Watched]) -> None:
    from rich.live import Live

    with (
        suppress(KeyboardInterrupt),
        _keys() as pressed,
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        while True:
            live.update(_frame(watched, console.width), refresh=True)
            if pressed(PERIOD_S / 2) == "q":
                return


class _Keys:
    def __call__(self, timeout_s: float) -> str:
        """What was pressed within a time; empty: nothing."""
        ready, _, _ = select.select([sys.stdin], [], [], timeout_s)
        return os.read(sys.stdin.fileno(), 1).decode("latin-1").lower() if ready else ""


@contextmanager
def _keys() -> Iterator[_Keys]:
    """Each key as it is pressed; the terminal is as before afterwards."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _Keys()
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


class _Watched:
    """A worker that is asked each second, on a thread of its own: one that is silent holds up no other.

    Attributes:
        error: why there is no answer now; empty: there is one.
    """

    def __init__(self, address: Address, credentials: Credentials) -> None:
        self.address = address
        self._credentials = credentials
        self.error = ""
        self._replies: deque[pb.DescribeReply] = deque(maxlen=WINDOW + 1)
        self._rates: deque[float] = deque(maxlen=SPARK)
        self._asked = 0
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._call: grpc.Future[pb.DescribeReply] | None = None
        self._thread = threading.Thread(target=self._run, name="feeder-top", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended.set()
            if self._call is not None:
                self._call.cancel()
        self._thread.join(LEAVE_S)

    def wait(self, times: int) -> None:
        """Waits until it was asked so often."""
        with self._changed:
            self._changed.wait_for(lambda: self._asked >= times, times * (STATUS_TIMEOUT_S + PERIOD_S))

    def seen(self) -> tuple[list[pb.DescribeReply], list[float]]:
        """Its last answers, and images a second between each two of them; both the oldest first."""
        with self._changed:
            return list(self._replies), list(self._rates)

    def _calls(self, call: grpc.Future[pb.DescribeReply]) -> None:
        with self._changed:
            self._call = call
            if self._ended.is_set():
                call.cancel()

    def _run(self) -> None:
        from feeder.advice.watched import work

        while True:
            reply, error = None, ""
            try:
                reply = describe(self.address, self._credentials, self._calls)
            except FeederError as failed:
                error = str(failed)
            with self._changed:
                self._asked += 1
                self.error = error
                if reply is not None:
                    if self._replies:
                        self._rates.append(work("", (self._replies[-1], reply)).images_s)
                    self._replies.append(reply)
                self._changed.notify_all()
            if self._ended.wait(PERIOD_S):
                return


def _frame(watched: Sequence[_Watched], width: int) -> RenderableType:
    """All workers, as many beside each other as fit."""
    from rich.table import Table

    columns = max(1, min(len(watched), width // LEAST_WIDTH))
    grid = Table.grid(expand=True)
    for _ in range(columns):
        grid.add_column(ratio=1)
    panels = [_panel(worker) for worker in watched]
    for first in range(0, len(panels), columns):
        grid.add_row(*panels[first : first + columns])
    return grid


def _panel(worker: _Watched) -> RenderableType:
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    from feeder.advice.diagnosis import diagnose, verdicts
    from feeder.advice.watched import consumers, work

    replies, rates = worker.seen()
    title = Text(printable(str(worker.address)), "bold")
    if not replies:
        return Panel(
            Text(printable(worker.error or "asking ..."), "red" if worker.error else ""), title=title
        )
    now = replies[-1]
    look = (replies[0], now) if len(replies) > 1 else (now.__class__(), now)
    done, served = work("", look), consumers({"": look})
    said = verdicts(diagnose({"": done}, served), now.live_streams)
    state = (
        ("not answering", "red")
        if worker.error
        else ("draining", "yellow")
        if now.draining
        else ("serving", "green")
    )
    head = Text.assemble(
        state,
        f", feeder {printable(now.version)}, up {duration(now.uptime_s)}, "
        f"{now.live_streams} of {now.max_streams} streams",
    )
    parts: list[RenderableType] = [
        head,
        *(_verdict(verdict, alone=len(said) == 1) for verdict in said),
        _figures(now, done, served, rates),
    ]
    if served:
        parts.append(_consumers(served))
    if now.quarantine:
        bad = now.quarantine[0]
        newest = printable(f"{bad.dataset}: {bad.shard}: record {bad.index}: {bad.reason}")
        parts.append(Text(f"bad records: {now.counters.bad_records:,} times; newest {newest}", "yellow"))
    return Panel(Group(*parts), title=title, title_align="left")


def _verdict(verdict: Verdict, *, alone: bool) -> Text:
    """Its sentence; with the jobs that it is of, where others fare otherwise."""
    from rich.text import Text

    jobs = "" if alone else f"{', '.join(map(printable, verdict.jobs))}: "
    return Text(f"{jobs}{verdict.sentence}", MOODS.get(verdict.limit, "yellow"))


def _figures(now: pb.DescribeReply, work: Work, served: Sequence[Consumer], rates: Sequence[float]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from feeder.advice.watched import waiting

    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_row("images/s", Text.assemble((f"{work.images_s:,.0f} ", "bold"), (_spark(rates), "cyan")))
    table.add_row(
        "bytes/s",
        f"{size(work.did.bytes_sent / work.seconds)} sent, "
        f"{size(work.did.bytes_placed / work.seconds)} into trainers' memory, "
        f"{size(work.did.bytes_read / work.seconds)} read",
    )
    table.add_row("threads", _bar(work.busy, "at work", "cyan"))
    if served:
        table.add_row("trainers", _bar(waiting(served), "waiting", "yellow"))
    else:
        table.add_row("trainers", Text("none is connected", "dim"))
    for name, field in (("cache", "cache"), ("encoded", "encoded_cache")):
        if now.HasField(field):
            info = getattr(now, field)
            found = work.hits if field == "cache" else work.encoded_hits
            hits = "" if found is None else f", {share(found)} hits"
            full = info.bytes / info.budget_bytes if info.budget_bytes else 0.0
            table.add_row(name, _bar(full, f"of {size(info.budget_bytes)}{hits}", "blue"))
    stages = (f"{stage.name} {'-' if stage.mean_s is None else short(stage.mean_s)}" for stage in work.stages)
    table.add_row("chunks", Text(", ".join(stages)))
    return table


def _consumers(consumers: Sequence[Consumer]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, expand=True, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("job", ratio=1, no_wrap=True, overflow="ellipsis")
    for name in ("consumer", "images/s", "waits", "ready", "epoch", "done"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in consumers:
        stream = one.stream
        report = stream.report if stream.HasField("report") else None
        table.add_row(
            Text(printable(one.job)),
            f"{stream.consumer_index} of {stream.consumer_count}",
            f"{one.images_s:,.0f}",
            _cell(one.waiting),
            "-" if report is None else f"{report.ready} of {report.prefetch}",
            f"{stream.epoch:,}",
            _cell(one.done),
        )
    return table


def _cell(part: float | None) -> str:
    """A share where there is little room."""
    return "-" if part is None else share(part).replace("under ", "<").replace("over ", ">")


def _bar(part: float | None, what: str, style: str) -> Text:
    from rich.text import Text

    if part is None:
        return Text("unknown", "dim")
    full = round(BAR * min(1.0, part))
    return Text.assemble(("█" * full, style), ("░" * (BAR - full), "dim"), f" {share(part)} {what}")


def _spark(rates: Sequence[float]) -> str:
    most = max(rates, default=0.0)
    return "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * rate / most))] for rate in rates) if most else ""
