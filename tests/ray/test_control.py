"""Reaching a Ray cluster, where there is none."""

from __future__ import annotations

import socket

import pytest

from feeder.errors import ConfigError

pytest.importorskip("ray", reason="no Ray here")

from feeder.ray.control import connected


@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_cluster_that_is_not_there_is_said_at_once(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address if by == "environment" else "127.0.0.1:1")
    with (
        pytest.raises(ConfigError, match=f"no Ray cluster can be reached at {address}: .*refused"),
        connected(address if by == "option" else None),
    ):
        pass
