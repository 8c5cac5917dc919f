"""The monitoring files among themselves, and against the DaemonSet that they are for."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

MANIFESTS = Path(__file__).resolve().parents[3] / "manifests"
MONITORING = MANIFESTS / "monitoring"


def load(name: str) -> Any:
    return yaml.safe_load((MONITORING / name).read_text())


def test_the_operators_rules_are_the_plain_rules() -> None:
    assert load("prometheusrule.yaml")["spec"]["groups"] == load("rules.yaml")["groups"]


def test_every_alert_says_what_it_is_about_and_how_bad_it_is() -> None:
    alerts = [rule for group in load("rules.yaml")["groups"] for rule in group["rules"] if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) > 20
    for rule in alerts:
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
        assert rule["annotations"]["summary"], rule["alert"]


def test_the_pod_monitor_finds_the_daemon_set() -> None:
    documents = list(yaml.safe_load_all((MANIFESTS / "base" / "daemonset.yaml").read_text()))
    template = documents[0]["spec"]["template"]
    ports = {port["name"] for container in template["spec"]["containers"] for port in container.get("ports", ())}
    spec = load("pod-monitor.yaml")["spec"]
    assert {endpoint["port"] for endpoint in spec["podMetricsEndpoints"]} <= ports
    assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    for endpoint in spec["podMetricsEndpoints"]:
        assert endpoint["honorLabels"]
        assert {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"} in endpoint["relabelings"]


def test_the_kustomization_renders() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on this machine")
    done = subprocess.run([kubectl, "kustomize", MONITORING], check=True, capture_output=True, text=True, timeout=30)
    objects = {item["kind"]: item for item in yaml.safe_load_all(done.stdout)}
    assert set(objects) == {"ConfigMap", "PodMonitor", "PrometheusRule"}
    board = json.loads(objects["ConfigMap"]["data"]["zerohop.json"])
    assert board["title"] == "Zerohop"
    assert objects["ConfigMap"]["metadata"]["labels"]["grafana_dashboard"] == "1"
