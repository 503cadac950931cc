"""What `make demo` decides and how it cleans up; `make demo` itself is run by CI."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

PackColours = Callable[..., Path]

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("feeder_demo", ROOT / "deploy/demo/demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("classes", "holdout", "requirement"),
    [(10, 200, "accuracy=4x"), (7, 70, "accuracy=4x"), (2, 20, "accuracy=1.5x"), (600, 0, "loss=0.5x")],
)
def test_requirement(demo: ModuleType, classes: int, holdout: int, requirement: str) -> None:
    assert demo._requirement(demo.Data("", "", 1000, holdout, classes)) == requirement


@pytest.fixture
def _on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.usefixtures("_on_path")
def test_workers_come_and_go(demo: ModuleType, pack_colours: PackColours, tmp_path: Path) -> None:
    data = demo.Data("", str(pack_colours(40)), 40, 0, 10)
    with demo.workers(tmp_path, sys.executable, data) as addresses:
        assert len(set(addresses)) == demo.WORKERS
    with pytest.raises(RuntimeError, match="ours"), demo.workers(tmp_path, sys.executable, data):
        raise RuntimeError("ours")


@pytest.mark.usefixtures("_on_path")
def test_a_worker_that_does_not_start_says_why(demo: ModuleType, tmp_path: Path) -> None:
    data = demo.Data("", str(tmp_path / "nothing"), 40, 0, 10)
    with (
        pytest.raises(demo.DemoError, match=r"a worker did not start: feeder: error: .*nothing"),
        demo.workers(tmp_path, sys.executable, data),
    ):
        pass


@pytest.mark.parametrize("terminal", [False, True])
def test_an_error_of_the_trainer_is_passed_on(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    trainer = tmp_path / "python"
    trainer.write_text(
        "#!/bin/sh\n(echo begins; [ -t 2 ] && echo live; echo 'feeder: error: ?') >&2\nexit 2\n"
    )
    trainer.chmod(0o755)
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(shown := io.BytesIO()))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    data = demo.Data("", "", 40, 0, 10)
    with pytest.raises(demo.DemoError, match=r"ended with exit code 2: feeder: error: \?$"):
        demo._train(tmp_path, str(trainer), data, "a:1", "loss=0.5x")
    assert shown.getvalue().split() == [b"begins", *[b"live"] * terminal, b"feeder:", b"error:", b"?"]


def test_own_images_are_packed_again_when_they_change(demo: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.jpg").write_bytes(b"1")
    first = demo._digest(tmp_path)
    assert demo._digest(tmp_path) == first
    (tmp_path / "cat" / "2.jpg").write_bytes(b"2")
    second = demo._digest(tmp_path)
    os.utime(tmp_path / "cat" / "1.jpg", (1, 1))
    assert len({first, second, demo._digest(tmp_path)}) == 3
