"""The outside of the package: public names, who imports whom, and errors that are all accounted for."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import feeder
from feeder import errors
from feeder.wire.status import from_status, to_status

PACKAGE = Path(feeder.__file__).resolve().parent

ANYONE = {"errors", "spec", "metrics", "config"}
ALLOWED = {
    "records": set(),
    "order": set(),
    "decode": {"records", "order"},
    "quality": {"records", "decode"},
    "cache": {"records", "order", "decode"},
    "batch": {"records", "order", "decode", "cache"},
    "wire": {"records", "order", "decode", "cache", "batch"},
    "advice": {"wire"},
    "worker": {"records", "order", "decode", "cache", "batch", "wire", "advice"},
    "client": {"order", "wire"},
    "trainer": {"client", "order", "wire"},
    "ray": {"client", "wire"},
}
"""What each package may import of the others, besides itself and what anyone may: the path of the data."""

WORKER_SIDE = ("feeder.records", "feeder.decode", "feeder.batch", "feeder.cache", "feeder.worker")
HEAVY = ("PIL", "simplejpeg", "pyarrow", "google_crc32c", "jax", "torch", "tqdm")


def imports(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports anywhere, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def loaded_by(statement: str) -> set[str]:
    """The modules that are loaded in a fresh process after a statement."""
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}; import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_packages_import_along_the_path_of_the_data(package: str) -> None:
    allowed = ALLOWED[package] | {package} | ANYONE
    for path in sorted((PACKAGE / package).rglob("*.py")):
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "feeder" or len(parts) < 2 or not (PACKAGE / parts[1]).is_dir():
                continue
            assert parts[1] in allowed, f"{path.relative_to(PACKAGE)} imports {name}"


def test_every_package_has_its_place() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert packages <= ALLOWED.keys() | {"cli"}


def test_import_feeder_is_light() -> None:
    loaded = loaded_by("import feeder")
    assert {name for name in loaded if name.startswith("feeder")} == {"feeder"}
    assert not {"numpy", "grpc", "google.protobuf", *HEAVY} & loaded


def test_the_client_loads_nothing_of_a_worker() -> None:
    loaded = loaded_by("import feeder; feeder.connect; feeder.Position; feeder.StreamSpec")
    assert "feeder.client.client" in loaded
    assert not [name for name in loaded if name.startswith(WORKER_SIDE)]
    assert not set(HEAVY) & loaded


@pytest.mark.parametrize(
    ("adapter", "framework", "other"), [("jax", "jax", "torch"), ("torch", "torch", "jax")]
)
def test_an_adapter_loads_its_own_framework_only(adapter: str, framework: str, other: str) -> None:
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    loaded = loaded_by(f"import feeder.client.{adapter}")
    assert framework in loaded
    assert other not in loaded


def test_public_names_are_there_and_sorted() -> None:
    assert feeder.__all__ == sorted(feeder.__all__)
    assert set(feeder.__all__) == set(feeder._HOMES)
    for name in feeder.__all__:
        assert getattr(feeder, name) is getattr(importlib.import_module(feeder._HOMES[name]), name)
        assert name in dir(feeder)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        feeder.nothing  # noqa: B018  # mypy: ignored for tests


def test_the_stream_call_has_the_arguments_that_others_rely_on() -> None:
    parameters = inspect.signature(feeder.Client.stream).parameters
    defaults = {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.default is not parameter.empty
    }
    assert {
        "consumer_index": 0,
        "consumer_count": 1,
        "seed": 0,
        "epochs": None,
        "image_size": 224,
        "augment": "train",
        "sampler": "torchvision",
        "resample": "bilinear",
        "antialias": True,
        "reduce": "auto",
        "output": "rgb",
        "remainder": "auto",
        "on_bad": "replace",
        "start": None,
        "job": None,
        "prefetch_bytes": None,
        "transport": "auto",
        "shuffle": None,
    }.items() <= defaults.items()


def every_error() -> list[type[errors.FeederError]]:
    return [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, errors.FeederError)
    ]


def example_of(kind: type[errors.FeederError]) -> errors.FeederError:
    return kind("train-00000", 3, "empty") if kind is errors.BadRecord else kind("what happened")


def test_every_error_is_exported() -> None:
    assert {kind.__name__ for kind in every_error()} == set(errors.__all__) - {"printable"}


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_survives_copy_and_pickle(kind: type[errors.FeederError]) -> None:
    # The client raises copies, and PyTorch carries errors from process to process.
    error = example_of(kind)
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is kind
        assert str(twin) == str(error)


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_has_a_status(kind: type[errors.FeederError]) -> None:
    code, text = to_status(example_of(kind))
    assert code is not grpc.StatusCode.OK
    assert text == str(example_of(kind))


class _Failed(grpc.RpcError, grpc.Call):
    """A call that ended in a status."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "details"

    def _unused(self, *_: object) -> None: ...

    add_callback = cancel = initial_metadata = is_active = time_remaining = trailing_metadata = _unused  # type: ignore[assignment]


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_status_is_an_error_of_ours(code: grpc.StatusCode) -> None:
    error = from_status(_Failed(code), "host:1")
    assert isinstance(error, errors.FeederError)
    assert "host:1" in str(error)
    assert "details" in str(error)
