import runpy
from dataclasses import replace

import pytest

from bench.contestant import RIVALS_FOLDER, SCRIPTS


@pytest.fixture
def installer(monkeypatch):
    """The script's names; `only` is a rival that every environment holds, so that no server is asked."""
    names = runpy.run_path(str(SCRIPTS / "install.py"))
    only = names["Requirements"](("pip",), 0.001, "import pip", ("libsomething-dev",))
    monkeypatch.setitem(names["RIVALS"], "only", only)
    return names


def test_the_folder_is_where_contestants_are_looked_for(installer):
    assert installer["FOLDER"] == RIVALS_FOLDER


def test_an_environment_that_is_there_is_kept(installer, tmp_path):
    ready = tmp_path / "only" / installer["READY"]
    ready.parent.mkdir()
    ready.write_text("pip\n")
    assert installer["install"]("only", tmp_path) is None
    assert ready.exists()


def test_one_that_does_not_run_here_is_gone_and_says_what_it_needs(installer, tmp_path):
    broken = replace(installer["RIVALS"]["only"], proof="import no_such_module")
    installer["RIVALS"]["only"] = broken
    assert installer["install"]("only", tmp_path) == (
        "ModuleNotFoundError: No module named 'no_such_module'"
        " (on Debian it needs: apt-get install libsomething-dev)"
    )
    assert list(tmp_path.iterdir()) == []


def test_too_small_a_disk(installer, tmp_path):
    installer["RIVALS"]["only"] = replace(installer["RIVALS"]["only"], disk_gb=1e6)
    assert "needs 1e+06 GB of disk" in installer["install"]("only", tmp_path)
