"""The same workers and data sets as in tests/service, and what makes links bad."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

_spec = importlib.util.spec_from_file_location(
    "service_fixtures", Path(__file__).resolve().parent.parent / "service" / "conftest.py"
)
assert _spec is not None
assert _spec.loader is not None
_service = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _service
_spec.loader.exec_module(_service)

digest_batches = _service.digest_batches
make_jpeg = _service.make_jpeg
make_shards = _service.make_shards
pair = _service.pair
run_client = _service.run_client
shards = _service.shards
start_worker = _service.start_worker


@pytest.fixture(scope="module")
def start_worker_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """`start_worker` for workers that the tests of a module share."""
    yield from _service._starter(tmp_path_factory.mktemp("workers"))
