"""What our EnvoyFilters make of an Istio-shaped Envoy, accepted by a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support import istio
from support.envoys import validate
from support.manifests import OVERLAYS, of_kind, rendered
from zerohop_process.address import Address

ENDPOINTS = [Address("10.0.0.1", 8000), Address("10.0.0.2", 8000)]
FILTERS = [
    (overlay, body["metadata"]["name"])
    for overlay in OVERLAYS
    for body in of_kind(rendered(f"overlays/{overlay}"), "EnvoyFilter")
]


def envoy_filter(overlay: str, name: str) -> dict[str, Any]:
    (found,) = [
        body for body in of_kind(rendered(f"overlays/{overlay}"), "EnvoyFilter") if body["metadata"]["name"] == name
    ]
    return found


def test_the_istio_shape_itself_is_valid(tmp_path: Path) -> None:
    validate(istio.bootstrap(Address("10.0.0.9", 9002), ENDPOINTS), tmp_path)


@pytest.mark.parametrize(("overlay", "name"), FILTERS)
def test_every_envoy_filter_is_valid(overlay: str, name: str, tmp_path: Path) -> None:
    body = envoy_filter(overlay, name)
    (context,) = {patch["match"]["context"] for patch in body["spec"]["configPatches"]}
    if context == "GATEWAY":
        bootstrap = istio.bootstrap(Address("10.0.0.9", 9002), ENDPOINTS)
    else:
        bootstrap = istio.sidecar_bootstrap("vllm-llama.inference.svc.cluster.local", 8000, ENDPOINTS)
    patched = istio.with_envoy_filter(bootstrap, body, context)
    assert patched != bootstrap
    validate(patched, tmp_path)
    # One socket per worker: a picker with fewer would have dead hosts, one with more idle workers.
    (cluster,) = [each for each in patched["static_resources"]["clusters"] if each["name"] == "zerohop-picker"]
    sockets = [
        each["endpoint"]["address"]["pipe"]["path"]
        for each in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    ]
    words = str(rendered(f"overlays/{overlay}"))
    assert f"--workers={len(sockets)}" in words
    assert f"--pool=inference/llama=unix:{sockets[0]}" in words
    assert sockets[1:] == [f"{sockets[0]}.{index}" for index in range(1, len(sockets))]


def test_there_are_envoy_filters() -> None:
    assert {overlay for overlay, _ in FILTERS} == {"istio-uds", "sidecar"}
