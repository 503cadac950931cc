import importlib
import inspect

import pytest

import feeder
from bench import harness
from feeder.cli import main
from feeder.cli.bench import _STAGES


@pytest.mark.parametrize(
    "arguments",
    [
        ["decode", "--input", "x", "--rounds", "0"],
        ["decode", "--input", "x", "--decoder", "fast"],
        ["decode"],
        ["service"],
        ["service", "--input", "x", "--shards", "y"],
        [],
    ],
)
def test_wrong_flags(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments])
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_the_help_says_what_each_does(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--help"])
    assert ended.value.code == 0
    assert "feeder bench decode --input" in capsys.readouterr().out


def test_a_folder_that_is_not_there(capsys):
    assert main(["bench", "decode", "--input", "no/such/folder"]) == 2
    assert capsys.readouterr().err == "feeder: error: --input no/such/folder: no such folder\n"
    assert main(["bench", "service", "--input", "no/such/folder"]) == 2
    assert capsys.readouterr().err == "feeder: error: --input no/such/folder: no such folder\n"


def test_more_threads_than_cores(capsys, imagenet_sample):
    assert main(["bench", "decode", "--input", str(imagenet_sample), "--threads", "5000"]) == 2
    assert "5000 cores are asked for" in capsys.readouterr().err


def test_outside_of_a_checkout(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(feeder, "__file__", str(tmp_path / "site-packages" / "feeder" / "__init__.py"))
    assert main(["bench", "decode", "--input", "x"]) == 2
    error = capsys.readouterr().err
    assert "needs a checkout of feeder" in error
    assert error.count("\n") == 1


def test_a_checkout_is_found_from_below(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(harness.ROOT / "bench" / "rivals")
    monkeypatch.setattr(feeder, "__file__", str(tmp_path / "site-packages" / "feeder" / "__init__.py"))
    assert main(["bench", "decode", "--input", str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", _STAGES)
def test_a_stage_has_the_arguments_of_its_module(name):
    run = importlib.import_module(f"bench.bench_{name}").run
    assert set(_STAGES[name].options) == set(inspect.signature(run).parameters)
