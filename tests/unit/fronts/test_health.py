from __future__ import annotations

import pytest

from zerohop_picker import health
from zerohop_picker._pb import health_pb2 as pb
from zerohop_picker.health import Health, NotProtobuf, Status

OURS = ("", "readiness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor")


@pytest.mark.parametrize(
    ("ready", "draining", "serving"),
    [(False, False, False), (True, False, True), (True, True, False), (False, True, False)],
)
def test_the_truth_table(ready: bool, draining: bool, serving: bool) -> None:
    """LDR PR#2900, GIE#240: liveness asks whether the process answers, every other name whether it can pick."""
    state = Health()
    state.update(ready=ready, pools={"ns/a": ready, "ns/b": False}, draining=draining)
    expected = Status.SERVING if serving else Status.NOT_SERVING
    assert {state.check(service) for service in OURS} == {expected}
    assert state.check("liveness") is Status.SERVING
    assert state.check("pool/ns/a") is expected
    assert state.check("pool/ns/b") is Status.NOT_SERVING
    assert state.check("pool/ns/c") is Status.SERVICE_UNKNOWN
    assert state.check("nope") is Status.SERVICE_UNKNOWN


def test_draining_is_for_good() -> None:
    state = Health()
    state.update(ready=True, pools={})
    state.drain()
    state.update(ready=True, pools={})
    assert state.check("readiness") is Status.NOT_SERVING


def test_watchers_hear_changes_only() -> None:
    state = Health()
    heard: list[Status] = []
    stop = state.watch(lambda: heard.append(state.check("")))
    state.update(ready=True, pools={})
    state.update(ready=True, pools={})
    state.update(ready=False, pools={})
    stop()
    state.update(ready=True, pools={})
    assert heard == [Status.SERVING, Status.NOT_SERVING]


@pytest.mark.parametrize("service", ["", "liveness", "x" * 300, "pool/ns/name"])
def test_requests_are_read_as_protobuf_writes_them(service: str) -> None:
    assert health.service_of(pb.HealthCheckRequest(service=service).SerializeToString()) == service


def test_unknown_fields_are_passed_over() -> None:
    request = b"\x10\x05" + b"\x1a\x03abc" + b"\x25\0\0\0\0" + pb.HealthCheckRequest(service="x").SerializeToString()
    assert health.service_of(request) == "x"


@pytest.mark.parametrize("request_bytes", [b"\x0a", b"\x0a\x05ab", b"\x0a\x01\xff", b"\xff" * 12, b"\x0b"])
def test_other_bytes_are_refused(request_bytes: bytes) -> None:
    with pytest.raises(NotProtobuf):
        health.service_of(request_bytes)


@pytest.mark.parametrize("status", list(Status))
def test_answers_read_back(status: Status) -> None:
    assert int(pb.HealthCheckResponse.FromString(health.response(status)).status) == status


def test_a_list_reads_back() -> None:
    statuses = {"": Status.SERVING, "liveness": Status.NOT_SERVING, "y" * 200: Status.UNKNOWN}
    read = pb.HealthListResponse.FromString(health.list_response(statuses))
    assert {name: int(entry.status) for name, entry in read.statuses.items()} == statuses
