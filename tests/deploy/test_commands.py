"""The commands inside the manifests, started as plain processes on data of this test."""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from feeder.cli import main

DEPLOY = Path(__file__).parents[2] / "deploy"
READY = "feeder worker listening on "
TIMEOUT_S = 120.0
# Code that is compiled sooner, and run only a few times.
JAX = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set where the manifests expect /data: train/ and validation/."""
    root = tmp_path_factory.mktemp("data")
    for part in ("train", "validation"):
        for label, colour in enumerate(("red", "green", "blue")):
            folder = root / part / colour
            folder.mkdir(parents=True)
            for number in range(8):
                image = Image.new("RGB", (48 + number, 40 + label), colour)
                image.save(folder / f"{number}.jpg")
    return root


def here(text: str, data: Path, tmp_path: Path) -> str:
    """A command or file of a manifest, for paths and ports of this test."""
    for theirs, ours in {
        "0.0.0.0:50051": "127.0.0.1:0",
        "0.0.0.0:9100": "127.0.0.1:0",
        "127.0.0.1:9100": "127.0.0.1:0",
        "/data/imagenet/": f"{data}/",
        "/data/": f"{data}/",
        "/dev/shm/feeder": f"{tmp_path}/shm",
        "/var/lib/feeder": f"{tmp_path}/index",
        "/run/feeder": f"{tmp_path}/run",
    }.items():
        text = text.replace(theirs, ours)
    return re.sub(r'"/index"', f'"{tmp_path}/index"', text)


class Daemon:
    """A worker as a manifest starts it."""

    def __init__(self, arguments: list[str], tmp_path: Path, environ: dict[str, str] | None = None) -> None:
        for name in ("index", "run", "shm"):
            (tmp_path / name).mkdir(mode=0o700)
        self.log = tmp_path / "worker.log"
        with open(self.log, "wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "feeder", *arguments],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=os.environ | (environ or {}),
            )

    def __enter__(self) -> Daemon:
        assert self.process.stdout is not None
        select.select([self.process.stdout], [], [], TIMEOUT_S)
        line = self.process.stdout.readline() if self.process.poll() is None else ""
        assert line.startswith(READY), self.log.read_text()
        self.address = line.removeprefix(READY).strip()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def probe(self, path: str) -> int:
        match = re.search(r"metrics and health at http://(\S+):(\d+)", self.log.read_text())
        assert match
        connection = http.client.HTTPConnection(match[1], int(match[2]), timeout=TIMEOUT_S)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT_S)


def test_the_folder_of_the_side_socket_is_made_the_workers(data: Path, tmp_path: Path) -> None:
    """On a node, where the folder of the host is root's, and again after a restart, where it is there."""
    spec = yaml.safe_load((DEPLOY / "kubernetes" / "daemonset.yaml").read_text())["spec"]["template"]["spec"]
    (before,) = spec["initContainers"]
    (container,) = spec["containers"]
    owner = spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsGroup"]
    command = [here(text, data, tmp_path) for text in before["command"]]
    assert (command[command.index("-o") + 1], command[command.index("-g") + 1]) == tuple(map(str, owner))
    command[command.index("-o") + 1], command[command.index("-g") + 1] = str(os.geteuid()), str(os.getegid())
    (tmp_path / "run").mkdir(mode=0o755)
    for _ in range(2):
        subprocess.run(command, check=True)
    made = Path(here(container["args"][container["args"].index("--arena-dir") + 1], data, tmp_path))
    assert made.stat().st_mode & 0o777 == 0o700
    assert str(made) == command[-1]


@pytest.mark.parametrize("name", ["daemonset.yaml", "deployment.yaml"])
def test_pods_start_answer_their_probes_and_end_within_their_grace(
    name: str, data: Path, tmp_path: Path
) -> None:
    spec = yaml.safe_load((DEPLOY / "kubernetes" / name).read_text())["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    settings = tmp_path / "feeder.toml"
    settings.write_text(here((DEPLOY / "kubernetes" / "feeder.toml").read_text(), data, tmp_path))
    arguments = [here(text, data, tmp_path) for text in container["args"]]
    arguments[arguments.index("--config") + 1] = str(settings)
    with Daemon(["worker", *arguments], tmp_path) as daemon:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert daemon.probe(container[probe]["httpGet"]["path"]) == 200
        assert daemon.terminate() == 0
    drain_s = tomllib.loads(settings.read_text())["worker"]["drain-s"]
    assert spec["terminationGracePeriodSeconds"] > drain_s


def test_the_unit_of_systemd_starts_with_its_settings(data: Path, tmp_path: Path) -> None:
    unit = (DEPLOY / "systemd" / "feeder-worker.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    environ = dict(line.split("=", 1) for line in re.findall(r"^Environment=(.*)$", unit, re.MULTILINE))
    environ = {name: here(value, data, tmp_path) for name, value in environ.items()}
    environ["FEEDER_CACHE_DIR"] = str(tmp_path / "shm")  # the user's own may be in use
    settings = tmp_path / "feeder.toml"
    settings.write_text(here((DEPLOY / "systemd" / "feeder.toml").read_text(), data, tmp_path))
    words = shlex.split(command)
    assert words[0] == "/opt/feeder/bin/feeder"
    words[words.index("--config") + 1] = str(settings)
    with Daemon(words[1:], tmp_path, environ) as daemon:
        assert daemon.probe("/readyz") == 200
        assert f"taken at {tmp_path}/run/worker" in daemon.log.read_text()
        assert daemon.terminate() == 0


def test_what_the_settings_of_systemd_have_for_other_hosts_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its lines are comments, for which the one that serves this host alone makes room."""
    text = (DEPLOY / "systemd" / "feeder.toml").read_text()
    assert "insecure" not in text
    others = re.sub(
        r"^# (?=[a-z-]+ = )", "", text.replace('listen = "127.0.0.1', '# "', 1), flags=re.MULTILINE
    )
    settings = tmp_path / "feeder.toml"
    settings.write_text(others)
    assert main(["config", "show", "--config", str(settings), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["worker"]
    assert said["listen"]["value"] == "0.0.0.0:50051"
    assert {"tls-cert", "tls-key", "tokens"} <= {
        name for name, one in said.items() if one["source"] == str(settings)
    }


def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]


def test_the_worker_of_compose_starts_and_passes_its_health_check(data: Path, tmp_path: Path) -> None:
    arguments = [here(text, data, tmp_path) for text in compose()["worker-a"]["command"]]
    arguments += ["--cache-dir", f"{tmp_path}/shm"]
    containerfile = (DEPLOY / "container" / "Containerfile").read_text()
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", containerfile, re.MULTILINE)
    (check,) = re.findall(r"CMD (\[.*\])$", containerfile, re.MULTILINE)
    with Daemon([*yaml.safe_load(entry)[1:], *arguments], tmp_path) as daemon:
        health = [text.replace("localhost:50051", daemon.address) for text in yaml.safe_load(check)[1:]]
        done = subprocess.run([sys.executable, "-m", "feeder", *health], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert daemon.terminate() == 0


def test_the_trainer_of_compose_is_given_options_that_it_has(tmp_path: Path) -> None:
    arguments = [re.sub(r"\$\{\w+:-(.*?)\}", r"\1", text) for text in compose()["trainer"]["command"]]
    arguments = [text.replace("/var/lib/feeder", str(tmp_path)) for text in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "feeder", "train", *arguments, "--dry-run"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | JAX,
    )
    assert done.returncode == 0, done.stderr
    assert "resnet50" in done.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    """A Slurm of one node: srun runs its command here."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "srun").write_text('#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n')
    (tools / "scontrol").write_text("#!/bin/sh\necho 127.0.0.1\n")
    (tools / "feeder").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m feeder "$@"\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    return os.environ | JAX | {"PATH": f"{tools}:{os.environ['PATH']}", "RUN_DIR": str(tmp_path / "run")}


def test_the_slurm_job_trains_and_leaves_no_worker(
    cluster: dict[str, str], data: Path, tmp_path: Path
) -> None:
    script = tmp_path / "feeder.sbatch"
    script.write_text((DEPLOY / "slurm" / "feeder.sbatch").read_text().replace("0.0.0.0:", "127.0.0.1:"))
    started_s = time.monotonic()
    done = subprocess.run(
        ["bash", script, data, "tiny", "--steps=2", "--warmup-steps=1", "--batch-size=8", "--image-size=32"],
        env=cluster | {"PORT": str(free_port())},
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "run" / "workers.log").read_text()
    assert "stream 1 opened" in log
    assert "SIGTERM came" in log, f"after {time.monotonic() - started_s:.0f} s: {log}"
    assert (tmp_path / "run" / "log" / "metrics.jsonl").is_file()
