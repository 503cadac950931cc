"""Flags, environment and file: one name, one precedence, and errors that say who said what."""

from __future__ import annotations

import argparse
import json
import os
import re
import tomllib
from pathlib import Path

import pytest

from feeder.cli import main
from feeder.cli.settings import OnCommandLine, add_config_option, options, resolve, variable
from feeder.cli.worker import add_worker_options, worker_environment
from feeder.errors import ConfigError

FILE = """
[worker]
listen = "127.0.0.1:0"
threads = 8
drain-s = 1.5
warm = true

[worker.dataset]
train = "/data/train-*"
validation = ["/data/val-a-*", "/data/val-b-*"]

[train]
anything = "that others read"
"""


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    add_worker_options(parser)
    for name in ("config", *options(parser)):
        monkeypatch.delenv(variable(name), raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "feeder.toml"
    path.write_text(FILE)
    return path


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, tuple[object, str]]:
    assert main(["config", "show", "--json", *argv]) == 0
    values = json.loads(capsys.readouterr().out)["worker"]
    return {name: (one["value"], one["source"]) for name, one in values.items()}


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["config", "show", *argv]) == 2
    message = capsys.readouterr().err
    assert message.startswith("feeder: error: ")
    assert message.count("\n") == 1
    return message


def test_a_flag_wins_over_the_environment_and_that_over_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEEDER_THREADS", "3")
    monkeypatch.setenv("FEEDER_MAX_STREAMS", "5")
    values = shown(capsys, "--config", str(file), "--max-streams", "7", "--no-warm")
    assert values["max-streams"] == (7, "command line")
    assert values["warm"] == (False, "command line")
    assert values["threads"] == (3, "environment FEEDER_THREADS")
    assert values["drain-s"] == (1.5, str(file))
    assert values["seek"] == ("learn", "default")
    assert values["dataset"] == (
        ["train=/data/train-*", "validation=/data/val-a-*", "validation=/data/val-b-*"],
        str(file),
    )


def test_the_environment_may_name_the_file_and_every_setting(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEEDER_CONFIG", str(file))
    monkeypatch.setenv("FEEDER_DATASET", "one=/a 'two=/with space/*'")
    monkeypatch.setenv("FEEDER_WARM", "off")
    values = shown(capsys)
    assert values["dataset"] == (["one=/a", "two=/with space/*"], "environment FEEDER_DATASET")
    assert values["warm"] == (False, "environment FEEDER_WARM")
    assert values["listen"] == ("127.0.0.1:0", str(file))


def test_data_sets_of_the_command_line_replace_those_of_the_file(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = shown(capsys, "--config", str(file), "--dataset=other=/d", "--dataset", "more=/e")
    assert values["dataset"] == (["other=/d", "more=/e"], "command line")


def test_secrets_in_urls_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--listen", "127.0.0.1:0", "--dataset", "a=s3://KEY:SECRET@bucket/train-*?region=x"]
    for flags in ([], ["--json"]):
        assert main(["config", "show", *given, *flags]) == 0
        out = capsys.readouterr().out
        assert "a=s3://bucket/train-*" in out
        assert "SECRET" not in out


def test_what_is_shown_is_a_file_that_says_the_same(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--cache-bytes", "1GiB", "--label-key", 'a\x7f"\\']
    assert main(["config", "show", "--config", str(file), *options]) == 0
    text = capsys.readouterr().out
    assert tomllib.loads(text)["worker"]["cache-bytes"] == "1GiB"
    assert re.search(r'^cache-bytes = "1GiB" +# command line$', text, re.MULTILINE)
    again = tmp_path / "again.toml"
    again.write_text(text)
    first = shown(capsys, "--config", str(file), *options)
    second = shown(capsys, "--config", str(again))
    assert {name: value for name, (value, _) in first.items()} == {
        name: value for name, (value, _) in second.items()
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("thread = 8", r"\[worker\] thread: there is no such setting; is threads meant\?"),
        ("threads = 'many'", r"feeder.toml: threads must be a whole number, got 'many'"),
        ("drain-s = 'long'", r"feeder.toml: drain-s must be a number, got 'long'"),
        ("threads = true", r"\[worker\] threads: must be text or a number, got True"),
        ("threads = [1]", r"\[worker\] threads: must be text or a number, got \[1\]"),
        ("threads = 0", r"feeder.toml: --threads must be in \[1, 4096\], got 0"),
        ("warm = 1", r"\[worker\] warm: must be true or false, got 1"),
        ("seek = 'always'", r"feeder.toml: seek must be one of learn, use, off, got 'always'"),
        ("label-base = -1", r"feeder.toml: label-base must be a number from 0 on, got '-1'"),
        ("dataset = ['x']", r"feeder.toml: --dataset wants NAME=PATTERN.*got 'x'"),
        ("cache-bytes = '5 parsec'", r"feeder.toml: --cache-bytes: .*5 parsec"),
        ("threads", r"is not TOML"),
        ("threads = " + "9" * 5000, r"feeder.toml: is not TOML: .*digits"),
        ("threads = " + "[" * 5000, r"feeder.toml: is no file of settings: .*nested too deep"),
        ("http = 'nowhere'", r"feeder.toml: --http: 'nowhere' is no address"),
        ("share-bytes = -1", r"feeder.toml: --share-bytes: a size is bytes, .*got '-1'"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    path = tmp_path / "feeder.toml"
    path.write_text(f"[worker]\n{line}\n")
    argv = ["--config", str(path), "--listen", "127.0.0.1:0"]
    if not line.startswith("dataset"):
        argv += ["--dataset", "a=/b"]
    assert re.search(message, refused(capsys, *argv))


def test_who_says_no_data_set_is_told_where_to(capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, "--listen", "127.0.0.1:0")
    for place in ("--dataset", "FEEDER_DATASET", "[worker.dataset]"):
        assert place in message


def test_what_is_wrong_in_the_environment_is_named_with_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--listen", "127.0.0.1:0", "--dataset", "a=/b"]
    monkeypatch.setenv("FEEDER_WARM", "perhaps")
    assert "FEEDER_WARM: must be true or false, got 'perhaps'" in refused(capsys, *given)
    monkeypatch.setenv("FEEDER_WARM", "true")
    monkeypatch.setenv("FEEDER_MAX_STREAMS", "0")
    assert "environment FEEDER_MAX_STREAMS: --max-streams must be in" in refused(capsys, *given)
    monkeypatch.delenv("FEEDER_MAX_STREAMS")
    monkeypatch.setenv("FEEDER_DATASET", "a='b")
    assert "FEEDER_DATASET: cannot be split into words" in refused(capsys, *given[:2])


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such file" in refused(capsys, "--config", str(tmp_path / "none.toml"))
    assert "Is a directory" in refused(capsys, "--config", str(tmp_path))
    flat = tmp_path / "flat.toml"
    flat.write_text("threads = 3\n")
    assert "threads: settings stand in a table, such as [worker]" in refused(capsys, "--config", str(flat))
    flat.write_text("[wroker]\nthreads = 3\n")
    assert "has no table [worker], where the settings stand, but [wroker]" in refused(
        capsys, "--config", str(flat)
    )
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    assert "is not TOML" in refused(capsys, "--config", str(binary))
    huge = tmp_path / "huge.toml"
    huge.write_bytes(b"#" * (2 << 20))
    assert "no file of settings" in refused(capsys, "--config", str(huge))


def test_variables_that_name_no_setting_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in os.environ if name.startswith("FEEDER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FEEDER_THREAD", "3")
    for name in ("FEEDER_PORT_50051_TCP", "FEEDER_SERVICE_PORT_HTTP", "FEEDER_TLS_CA", "FEEDER_TOKEN_FILE"):
        monkeypatch.setenv(name, "of Kubernetes, or a client's")
    assert main(["config", "show", "--listen", "127.0.0.1:0", "--dataset", "a=/b"]) == 0
    said = capsys.readouterr().out
    assert "# FEEDER_THREAD in the environment is no setting; is FEEDER_THREADS meant?\n" in said
    assert said.count("is no setting") == 5
    assert said.count("meant?") == 1


def test_the_log_names_a_variable_that_looks_mistyped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that would have closed the door, say."""
    monkeypatch.setenv("FEEDER_TOKNS", "tokens.toml")
    monkeypatch.setenv("FEEDER_PORT", "tcp://10.0.0.1:50051")
    assert (
        main(["worker", "--dataset", "a=/nowhere", "--listen", "127.0.0.1:0", "--tls-cert", "/nowhere"]) == 2
    )
    said = capsys.readouterr().err
    assert "FEEDER_TOKNS in the environment is no setting; is FEEDER_TOKENS meant?" in said
    assert "FEEDER_PORT" not in said


def test_another_command_has_a_table_of_its_own(file: Path) -> None:
    parser = argparse.ArgumentParser()
    add_config_option(parser, "train")
    parser.add_argument("--anything")
    assert resolve(parser, "train", ["--config", str(file)], {}).argv[0] == "--anything=that others read"
    with pytest.raises(ConfigError, match="there is no such setting; there are anything"):
        resolve(parser, "worker", ["--config", str(file)], {})


def test_the_page_in_the_docs_is_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "reference"]) == 0
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert page.read_text() == capsys.readouterr().out, (
        "write it anew: feeder config reference > docs/configuration.md"
    )


def test_what_was_said_goes_to_another_process_by_its_environment(file: Path) -> None:
    parser = argparse.ArgumentParser()
    add_worker_options(parser)
    parser.add_argument("--own", action=OnCommandLine)
    environ = {"FEEDER_MAX_STREAMS": "7", "FEEDER_OWN": "ignored"}
    given = ["--config", str(file), "--dataset", "a b=/data/it's here", "--no-index-build", "--own", "x"]
    settings = resolve(parser, "worker", given, environ)
    args = parser.parse_args(settings.argv)
    args.settings = settings
    told = worker_environment(args)
    assert told["FEEDER_DATASET"] == "'a b=/data/it'\"'\"'s here'"
    assert set(told) == {
        "FEEDER_DATASET",
        "FEEDER_DRAIN_S",
        "FEEDER_INDEX_BUILD",
        "FEEDER_LISTEN",
        "FEEDER_MAX_STREAMS",
        "FEEDER_THREADS",
        "FEEDER_WARM",
    }
    there = parser.parse_args(resolve(parser, "worker", [], told).argv)
    different = {"config", "own", "settings"}
    assert {name: value for name, value in vars(there).items() if name not in different} == {
        name: value for name, value in vars(args).items() if name not in different
    }
