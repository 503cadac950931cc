"""Settings of a command that do not come from its command line: a TOML file, and the environment.

One name everywhere: `--max-streams 8`, `FEEDER_MAX_STREAMS=8`, and in the file

    [worker]
    max-streams = 8

    [worker.dataset]
    train = "/data/train-*"
    validation = ["/data/val-a-*", "/data/val-b-*"]

A flag wins over the environment, the environment over the file, the file over the default; an option that may
be given many times is taken whole from the first of them that has it. What file and environment say becomes
flags in front of those of the command line, so that there is one place where settings are read and checked.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feeder.errors import ConfigError

__all__ = ["OnCommandLine", "Setting", "Settings", "add_config_option", "options", "resolve", "variable"]

PREFIX = "FEEDER_"
CONFIG_OPTION = "--config"
"""Names the file; so does FEEDER_CONFIG."""

COMMAND_LINE = "command line"

MAX_FILE_BYTES = 1 << 20

SAME_WORD = 0.8
"""How like each other two names are, in [0, 1], where one may be mistyped for the other. TLS_CA, which is a
client's, and TLS_CERT are 0.71."""

_KINDS = {int: "a whole number", float: "a number"}

_YES = ("1", "true", "yes", "on")
_NO = ("0", "false", "no", "off", "")


@dataclass(frozen=True, slots=True)
class Setting:
    """What one option was told, and where.

    Attributes:
        texts: as on a command line, one for each time the option is given; of a switch "true" or "false".
        source: such as "environment FEEDER_THREADS" or "/etc/feeder.toml".
    """

    texts: tuple[str, ...]
    source: str


@dataclass(slots=True)
class Settings:
    """What a command is told beside its defaults.

    Attributes:
        argv: flags for its parser.
        sources: by name of the option, without dashes, where its value comes from; not of defaults.
        unknown: variables of the environment that start as ours do, and name no option; with the one that is
            likely meant, or nothing.
    """

    argv: list[str] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)

    def blame(self, message: str) -> str:
        """A message about `--name`, with who set it where that was not the command line."""
        for name, source in self.sources.items():
            if source != COMMAND_LINE and re.search(rf"--{name}\b(?!-)", message):
                return f"{source}: {message}"
        return message

    def doubt(self, unknown: str) -> str:
        """What is to be said of an unknown variable."""
        likely = self.unknown[unknown]
        return f"{unknown} in the environment is no setting" + (f"; is {likely} meant?" if likely else "")


class OnCommandLine(argparse._StoreAction):
    """Action of an option that neither file nor environment can set."""


def options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The options of a parser that can be set elsewhere, by name without dashes: all but plain switches and
    what is for the command line only."""
    found = {}
    for action in parser._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        once = isinstance(action, argparse._HelpAction | argparse._StoreTrueAction | OnCommandLine)
        if names and not once and names[0] != CONFIG_OPTION:
            found[names[0].removeprefix("--")] = action
    return found


def add_config_option(parser: argparse.ArgumentParser, table: str) -> None:
    """Lets a command take settings from the environment, and from a table of a file."""
    parser.add_argument(
        CONFIG_OPTION,
        metavar="FILE",
        help=f"settings in TOML, under [{table}], named as the flags; FEEDER_... in the environment, such as "
        "FEEDER_THREADS, win over it, flags over both (default: $FEEDER_CONFIG)",
    )
    parser.set_defaults(table=table)


def variable(name: str) -> str:
    """The variable of the environment for an option."""
    return PREFIX + name.upper().replace("-", "_")


def resolve(
    parser: argparse.ArgumentParser, table: str, argv: Sequence[str], environ: Mapping[str, str] = os.environ
) -> Settings:
    """What a command line, the environment and a file say together.

    Args:
        parser: of the command; knows `--config`.
        table: of the file, with the settings of this command.
        argv: flags of the command line.

    Raises:
        ConfigError: the file cannot be read, or it or the environment has a setting that cannot be.
    """
    known = options(parser)
    by_flag = {flag: name for name, action in known.items() for flag in action.option_strings}
    words = [word.partition("=")[0] for word in argv]
    given = {by_flag[word] for word in words if word in by_flag}
    layers = [_from_environment(known, environ)]
    if (path := _file(argv, environ)) is not None:
        layers.append(_from_file(path, table, known))
    settings = Settings(sources=dict.fromkeys(given, COMMAND_LINE))
    for layer in layers:
        for name, setting in layer.items():
            if name not in settings.sources:
                settings.sources[name] = setting.source
                settings.argv += _flags(name, known[name], setting)
    settings.argv += argv
    variables = [variable(name) for name in known]
    settings.unknown = {
        name: _likely(name, variables)
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in (variable("config"), *variables)
    }
    return settings


def _likely(unknown: str, variables: Sequence[str]) -> str:
    """Which of the variables differs from one that is unknown by a letter or two; empty: none."""
    ends = [name.removeprefix(PREFIX) for name in variables]
    found = difflib.get_close_matches(unknown.removeprefix(PREFIX), ends, 1, SAME_WORD)
    return PREFIX + found[0] if found else ""


def _file(argv: Sequence[str], environ: Mapping[str, str]) -> Path | None:
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    finder.add_argument(CONFIG_OPTION)
    try:
        named = finder.parse_known_args(list(argv))[0].config
    except argparse.ArgumentError:
        return None  # the command's own parser says what is wrong
    named = named or environ.get(variable("config"))
    return Path(named) if named else None


def _from_environment(known: Mapping[str, argparse.Action], environ: Mapping[str, str]) -> dict[str, Setting]:
    found = {}
    for name, action in known.items():
        text = environ.get(variable(name))
        if text is None:
            continue
        source = f"environment {variable(name)}"
        if isinstance(action, argparse._AppendAction):
            try:
                texts = tuple(shlex.split(text))
            except ValueError as error:
                raise ConfigError(f"{source}: cannot be split into words, got {text!r}: {error}") from None
        elif isinstance(action, argparse.BooleanOptionalAction):
            if text.lower() not in _YES + _NO:
                raise ConfigError(f"{source}: must be true or false, got {text!r}")
            texts = ("true" if text.lower() in _YES else "false",)
        else:
            texts = (text,)
        found[name] = Setting(texts, source)
    return found


def _from_file(path: Path, table: str, known: Mapping[str, argparse.Action]) -> dict[str, Setting]:
    found = {}
    for name, value in _table(path, table).items():
        where = f"{path}: [{table}] {name}"
        if name not in known:
            close = difflib.get_close_matches(name.replace("_", "-"), known, 1)
            raise ConfigError(
                f"{where}: there is no such setting"
                + (f"; is {close[0]} meant?" if close else f"; there are {', '.join(known)}")
            )
        found[name] = Setting(tuple(_texts(where, known[name], value)), str(path))
    return found


def _table(path: Path, table: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the settings: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: has more than {MAX_FILE_BYTES} bytes: no file of settings")
    try:
        document = tomllib.loads(data.decode())
    except ValueError as error:  # also of a number with thousands of digits
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: is no file of settings: its values are nested too deep") from None
    if stray := [name for name, value in document.items() if not isinstance(value, dict)]:
        raise ConfigError(f"{path}: {', '.join(stray)}: settings stand in a table, such as [{table}]")
    if document and table not in document:
        raise ConfigError(
            f"{path}: has no table [{table}], where the settings stand, but [{'], ['.join(document)}]"
        )
    found: dict[str, Any] = document.get(table, {})
    return found


def _texts(where: str, action: argparse.Action, value: object) -> Iterator[str]:
    """A value of TOML as it would stand on the command line."""
    if isinstance(action, argparse.BooleanOptionalAction):
        if not isinstance(value, bool):
            raise ConfigError(f"{where}: must be true or false, got {value!r}")
        yield "true" if value else "false"
    elif isinstance(action, argparse._AppendAction):
        pairs = value.items() if isinstance(value, dict) else [("", value)]
        for key, one in pairs:
            for text in one if isinstance(one, list) else [one]:
                yield (f"{key}=" if key else "") + _text(where, text)
    else:
        yield _text(where, value)


def _text(where: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{where}: must be text or a number, got {value!r}")
    return str(value)


def _flags(name: str, action: argparse.Action, setting: Setting) -> list[str]:
    """A setting as flags; checked here, where it is known who said it."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return [f"--{name}" if setting.texts == ("true",) else f"--no-{name}"]
    for text in setting.texts:
        convert: Any = action.type or str
        try:
            value = convert(text)
        except argparse.ArgumentTypeError as error:
            raise ConfigError(f"{setting.source}: {name} {error}") from None
        except (ValueError, TypeError):
            kind = _KINDS.get(convert, f"a valid {getattr(convert, '__name__', 'value')}")
            raise ConfigError(f"{setting.source}: {name} must be {kind}, got {text!r}") from None
        if action.choices is not None and value not in action.choices:
            choices = ", ".join(map(str, action.choices))
            raise ConfigError(f"{setting.source}: {name} must be one of {choices}, got {text!r}")
    return [f"--{name}={text}" for text in setting.texts]
