"""What deploy/ has for orchestrators: right by schema, right among themselves, and right about feeder."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from feeder.wire.v1 import feeder_pb2 as pb
from feeder.worker.metrics import registry_of

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def manifests() -> dict[str, Any]:
    kustomization = load(KUBERNETES / "kustomization.yaml")
    return {name: load(KUBERNETES / name) for name in kustomization["resources"]}


def pods() -> Iterator[Any]:
    for name in ("daemonset.yaml", "deployment.yaml"):
        yield manifests()[name]["spec"]["template"]


@pytest.mark.parametrize("name", sorted(manifests()))
def test_kubernetes_knows_every_field(name: str) -> None:
    kubernetes_validate.validate(manifests()[name], kubernetes_validate.latest_version(), strict=True)


def test_the_kustomization_names_every_file() -> None:
    kustomization = load(KUBERNETES / "kustomization.yaml")
    named = set(kustomization["resources"]) | {
        file for generator in kustomization["configMapGenerator"] for file in generator["files"]
    }
    assert named | {"kustomization.yaml"} == {path.name for path in KUBERNETES.iterdir()}


def test_pods_have_what_they_name() -> None:
    settings = {
        generator["name"] for generator in load(KUBERNETES / "kustomization.yaml")["configMapGenerator"]
    }
    for template in pods():
        spec = template["spec"]
        (container,) = spec["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            volume["name"] for volume in spec["volumes"]
        }
        assert {
            volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume
        } <= settings
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] in ports
        assert set(ports.values()) == {port["port"] for port in manifests()["service.yaml"]["spec"]["ports"]}


def test_selectors_find_the_pods() -> None:
    labels = [template["metadata"]["labels"] for template in pods()]
    found = manifests()

    def matching(selector: dict[str, str]) -> int:
        return sum(selector.items() <= one.items() for one in labels)

    assert matching(found["service.yaml"]["spec"]["selector"]) == 2
    assert matching(found["network.yaml"]["spec"]["podSelector"]["matchLabels"]) == 2
    assert matching(found["disruption.yaml"]["spec"]["selector"]["matchLabels"]) == 1
    for name, label in zip(("daemonset.yaml", "deployment.yaml"), labels, strict=True):
        assert found[name]["spec"]["selector"]["matchLabels"].items() <= label.items()
    target = found["autoscaler.yaml"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", found["deployment.yaml"]["metadata"]["name"])


def test_memory_for_decoded_images_is_within_the_pods_limit() -> None:
    """A tmpfs counts for the memory of its pod: one as large as the limit would end in its death."""
    for template in pods():
        limit = template["spec"]["containers"][0]["resources"]["limits"]["memory"]
        (shm,) = (volume for volume in template["spec"]["volumes"] if volume["name"] == "shm")
        assert int(shm["emptyDir"]["sizeLimit"].removesuffix("Gi")) < int(limit.removesuffix("Gi"))


def metric_names() -> set[str]:
    cache = pb.CacheInfo(hits=1)
    reply = pb.DescribeReply(
        cache=cache,
        encoded_cache=cache,
        datasets=[pb.DatasetInfo(name="d")],
        stages=[pb.StageInfo(name="make", buckets=[0])],
        streams=[pb.StreamInfo(report=pb.ClientReport())],
    )
    registry = registry_of(lambda: reply, certificate_ends=lambda: datetime.now(UTC))
    return {sample.name for family in registry.collect() for sample in family.samples}


def test_rules_dashboard_and_autoscaler_ask_for_metrics_that_exist() -> None:
    rules = load(DEPLOY / "prometheus" / "rules.yaml")["groups"][0]["rules"]
    panels = json.loads((DEPLOY / "prometheus" / "dashboard.json").read_text())["panels"]
    expressions = [rule["expr"] for rule in rules]
    expressions += [target["expr"] for panel in panels for target in panel["targets"]]
    expressions += [
        metric["pods"]["metric"]["name"] for metric in manifests()["autoscaler.yaml"]["spec"]["metrics"]
    ]
    asked = {name for text in expressions for name in re.findall(r"\bfeeder_\w+", text)}
    assert len(asked) > 10
    assert asked <= metric_names()


def test_every_alert_has_its_line_in_the_runbook() -> None:
    rules = load(DEPLOY / "prometheus" / "rules.yaml")["groups"][0]["rules"]
    runbook = (ROOT / "docs" / "operations.md").read_text()
    for alert in [rule["alert"] for rule in rules if "alert" in rule]:
        assert f"`{alert}`" in runbook, alert


needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed"
)


@needs_promtool
def test_every_alert_fires_on_what_it_is_about_and_not_where_all_is_well(tmp_path: Path) -> None:
    cases = Path(__file__).with_name("alerts.yaml")
    alerts = {
        rule["alert"]
        for rule in load(DEPLOY / "prometheus" / "rules.yaml")["groups"][0]["rules"]
        if "alert" in rule
    }
    for case in load(cases)["tests"]:
        assert {test["alertname"] for test in case["alert_rule_test"]} == alerts, case["name"]
    shutil.copy(DEPLOY / "prometheus" / "rules.yaml", tmp_path)
    shutil.copy(cases, tmp_path)
    done = subprocess.run(
        ["promtool", "test", "rules", cases.name], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_takes_what_the_dashboard_asks(tmp_path: Path) -> None:
    panels = json.loads((DEPLOY / "prometheus" / "dashboard.json").read_text())["panels"]
    asked = [
        target["expr"].replace("$__rate_interval", "1m") for panel in panels for target in panel["targets"]
    ]
    rules = tmp_path / "rules.yaml"
    group = {
        "name": "panels",
        "rules": [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(asked)],
    }
    rules.write_text(yaml.safe_dump({"groups": [group]}))
    done = subprocess.run(["promtool", "check", "rules", rules], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_takes_rules_and_configuration(tmp_path: Path) -> None:
    subprocess.run(["promtool", "check", "rules", DEPLOY / "prometheus" / "rules.yaml"], check=True)
    text = (DEPLOY / "compose" / "prometheus.yaml").read_text()
    moved = tmp_path / "prometheus.yaml"
    moved.write_text(text.replace("/etc/prometheus", str(DEPLOY / "prometheus")))
    subprocess.run(["promtool", "check", "config", moved], check=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "feeder-worker.service"
    text = (DEPLOY / "systemd" / unit.name).read_text()
    unit.write_text(text.replace("/opt/feeder/bin/feeder", str(Path(sys.executable).with_name("feeder"))))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if unit.name in line]
    assert not complaints


def test_compose_mounts_files_that_are_there() -> None:
    compose = load(DEPLOY / "compose" / "compose.yaml")
    for name, service in compose["services"].items():
        for volume in service.get("volumes", ()):
            source = volume.split(":", 1)[0]
            if source.startswith("."):
                assert (DEPLOY / "compose" / source).is_file(), name
            elif not source.startswith("$"):
                assert source in compose["volumes"], name
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file(), name


def test_the_image_has_the_libraries_that_the_kernel_wants() -> None:
    kernels = list((ROOT / "feeder" / "decode").glob("_kernel*.so")) or list(
        Path(sys.prefix).glob("lib/python*/site-packages/feeder/decode/_kernel*.so")
    )
    if not kernels or shutil.which("dpkg-query") is None:
        pytest.skip("no native kernel, or not Debian")
    linked = subprocess.run(["ldd", kernels[0]], capture_output=True, text=True, check=True).stdout
    packages = set()
    for path in re.findall(r"=> (/\S+)", linked):
        found = subprocess.run(
            ["dpkg-query", "-S", Path(path).resolve()], capture_output=True, text=True, check=False
        ).stdout
        packages.add(found.partition(":")[0])
    base = {"", "libc6", "libgcc-s1", "libstdc++6", "zlib1g"}  # of every image of Python on Debian
    if not (wanted := packages - base):
        pytest.skip("the kernel has its libraries inside, or they are of another distribution")
    final = (DEPLOY / "container" / "Containerfile").read_text().split("FROM ")[-1]
    debian12 = {"libjpeg-turbo8": "libjpeg62-turbo"}  # what Ubuntu calls it
    assert {debian12.get(name, name) for name in wanted} <= set(final.split())
