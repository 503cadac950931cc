"""The same workers and data sets as in tests/service."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

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
