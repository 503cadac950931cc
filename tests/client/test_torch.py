"""Batches as PyTorch tensors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feeder
from feeder.errors import ConfigError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.utils.data import DataLoader  # noqa: E402

from feeder.client.torch import FeederDataset, yuv420_to_rgb  # noqa: E402

Make = Callable[..., Any]
TINY: dict[str, Any] = {"batch_size": 8, "image_size": 4}


def values(loader: Any) -> list[list[int]]:
    return [batch.images[:, 0, 0, 0].tolist() for batch in loader]


def test_a_loader_gives_an_epoch_at_a_time(scripted: Make) -> None:
    worker = scripted()
    with feeder.connect(worker.address).stream("data", **TINY, epochs=2) as stream:
        expected = [batch.images[:, 0, 0, 0].tolist() for batch in stream]
    dataset = FeederDataset(lambda: worker.address, "data", **TINY)
    loader = DataLoader(dataset, batch_size=None)
    assert dataset.stream is None
    assert values(loader) + values(loader) == expected
    assert dataset.stream is not None
    assert dataset.stream.ledger().totals.delivered == 8 * len(expected)
    dataset.close()


def test_tensors_have_the_shapes_that_torch_wants(scripted: Make) -> None:
    dataset = FeederDataset(scripted().address, "data", **TINY)
    images, labels, mask, position = next(iter(DataLoader(dataset, batch_size=None)))
    assert images.shape == (8, 3, 4, 4)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert (images.dtype, labels.dtype, mask.dtype) == (torch.uint8, torch.int64, torch.bool)
    assert position.to_dict() == dataset.state_dict()
    dataset.close()


def test_yuv420_comes_as_its_bytes_and_becomes_rgb(scripted: Make) -> None:
    dataset = FeederDataset(scripted().address, "data", **TINY, output="yuv420")
    images, _, _, _ = next(iter(DataLoader(dataset, batch_size=None)))
    assert (images.shape, images.dtype) == ((8, 24), torch.uint8)
    assert yuv420_to_rgb(images).shape == (8, 3, 4, 4)
    dataset.close()


def test_evaluation_is_a_whole_pass_each_time(scripted: Make) -> None:
    dataset = FeederDataset(scripted().address, "data", **TINY, augment="eval")
    next(iter(dataset))
    for _ in range(2):
        assert sorted(np.concatenate(values(dataset)).tolist()) == list(range(1, 41))
    dataset.close()


def test_resume_from_a_saved_state(scripted: Make) -> None:
    worker = scripted()
    dataset = FeederDataset(worker.address, "data", **TINY)
    assert dataset.state_dict() == {}
    iterator = iter(dataset)
    next(iterator)
    next(iterator)
    state = json.loads(json.dumps(dataset.state_dict()))
    rest = values(iterator)
    dataset.close()
    resumed = FeederDataset(worker.address, "data", **TINY)
    resumed.load_state_dict(state)
    assert values(resumed) == rest
    assert len(rest) == 3
    resumed.close()


LOADER_PROCESSES = """
from torch.utils.data import DataLoader
from feeder.client.torch import FeederDataset

if __name__ == "__main__":
    dataset = FeederDataset("127.0.0.1:9", "data", batch_size=8)
    next(iter(DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context={method!r})))
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_loader_processes_are_refused(method: str, tmp_path: Path) -> None:
    script = tmp_path / "loader.py"  # a process of its own: this one has threads that must not be forked
    script.write_text(LOADER_PROCESSES.format(method=method))
    environment = {**os.environ, "PYTHONPATH": str(Path(feeder.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=environment, timeout=100
    )
    assert done.returncode == 1
    assert "num_workers=0" in done.stderr


def test_batch_size_is_required() -> None:
    with pytest.raises(ConfigError, match="batch_size"):
        FeederDataset("127.0.0.1:9", "data")


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_a_stateful_loader_goes_on_where_it_was(scripted: Make) -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    worker = scripted()

    def make() -> tuple[Any, FeederDataset]:
        dataset = FeederDataset(worker.address, "data", **TINY)
        return torchdata.StatefulDataLoader(dataset, batch_size=None), dataset

    loader, dataset = make()
    expected = values(loader) + values(loader)
    dataset.close()

    loader, dataset = make()
    begun = [batch.images[:, 0, 0, 0].tolist() for _, batch in zip(range(3), loader, strict=False)]
    state = json.loads(json.dumps(loader.state_dict()))
    dataset.close()

    loader, dataset = make()
    loader.load_state_dict(state)
    assert begun + values(loader) + values(loader) == expected
    dataset.close()
