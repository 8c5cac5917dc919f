"""The conformance suite on the core: it passes, and a picker broken on purpose fails in the right case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.conformance import CoreTarget
from support.schedulers import FixedScheduler
from zerohop_console.conformance.picker.cases import CASES
from zerohop_console.conformance.picker.runner import Verdict, run_case, run_cases
from zerohop_console.conformance.picker.script import Case
from zerohop_picker._pb import extproc_pb2 as pb
from zerohop_picker.protocol import ExtProcStream, ProtocolCore, ProtocolSettings
from zerohop_process.address import Address

POOL = (Address("10.0.0.1", 8000), Address("10.0.0.2", 8001), Address("fd00::1", 8000))


def _core(**settings: Any) -> ProtocolCore:
    return ProtocolCore(FixedScheduler([str(member) for member in POOL]), ProtocolSettings(**settings))


@pytest.mark.parametrize("settings", [{"response": "skip"}, {"response": "observe"}, {"conformance_headers": True}])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_case(case: Case, settings: dict[str, Any]) -> None:
    core = _core(**settings)
    result = await run_case(case, CoreTarget(core), POOL, timeout_s=1.0, steering="conformance_headers" in settings)
    assert result.verdict is (
        Verdict.SKIP if case.steering and "conformance_headers" not in settings else Verdict.PASS
    ), result.detail
    assert isinstance(core.scheduler, FixedScheduler)
    assert core.scheduler.in_flight == 0
    assert core.counters.held_bytes == 0


def test_names_are_unique_and_say_where_they_come_from() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.source and case.demands.endswith(".") for case in CASES)


Change = Callable[[pb.ProcessingResponse], Any]


def _drop_metadata(reply: pb.ProcessingResponse) -> None:
    reply.ClearField("dynamic_metadata")


def _other_metadata(reply: pb.ProcessingResponse) -> None:
    if reply.HasField("dynamic_metadata"):
        fields = reply.dynamic_metadata.fields["envoy.lb"].struct_value.fields
        fields["x-gateway-destination-endpoint"].string_value = "10.0.0.9:1"


def _append(reply: pb.ProcessingResponse) -> None:
    for option in reply.request_headers.response.header_mutation.set_headers:
        option.append_action = pb.HeaderValueOption.APPEND_IF_EXISTS_OR_ADD


def _value_field(reply: pb.ProcessingResponse) -> None:
    for option in reply.request_headers.response.header_mutation.set_headers:
        option.header.value = option.header.raw_value.decode()


def _plain_body(reply: pb.ProcessingResponse) -> None:
    if reply.HasField("request_body"):
        body = reply.request_body.response.body_mutation.streamed_response.body
        reply.request_body.response.body_mutation.body = body


def _reformatted(reply: pb.ProcessingResponse) -> None:
    chunk = reply.request_body.response.body_mutation
    if chunk.HasField("streamed_response"):
        chunk.streamed_response.body = chunk.streamed_response.body.replace(b"1.0e0", b"1.0")


def _other_status(reply: pb.ProcessingResponse) -> None:
    if reply.HasField("immediate_response"):
        reply.immediate_response.status.code = 500


def _plain_error(reply: pb.ProcessingResponse) -> None:
    if reply.HasField("immediate_response"):
        reply.immediate_response.body = b"inference error: BadRequest"


def _one_endpoint(reply: pb.ProcessingResponse) -> None:
    for option in reply.request_headers.response.header_mutation.set_headers:
        if option.header.key == "x-gateway-destination-endpoint":
            option.header.raw_value = option.header.raw_value.split(b",")[0]
            fields = reply.dynamic_metadata.fields["envoy.lb"].struct_value.fields
            fields["x-gateway-destination-endpoint"].string_value = option.header.raw_value.decode()


Replies = Callable[[list[bytes]], list[bytes]]


class _BrokenStream:
    """A stream of the core whose replies are changed on their way out."""

    def __init__(self, stream: ExtProcStream, change: Replies) -> None:
        self._stream, self._change = stream, change

    def receive(self, message: bytes, now_ns: int) -> list[bytes]:
        return self._change(self._stream.receive(message, now_ns))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _BrokenTarget(CoreTarget):
    def __init__(self, core: ProtocolCore, change: Replies):
        super().__init__(core)
        self._change = change

    def open(self) -> Any:
        exchange: Any = super().open()
        exchange.stream = _BrokenStream(exchange.stream, self._change)
        return exchange


def _broken(change: Change) -> Replies:
    def changed(replies: list[bytes]) -> list[bytes]:
        out = []
        for data in replies:
            reply = pb.ProcessingResponse.FromString(data)
            change(reply)
            out.append(reply.SerializeToString())
        return out

    return changed


def _reversed(replies: list[bytes]) -> list[bytes]:
    return replies[::-1]


@pytest.mark.parametrize(
    ("change", "case", "says"),
    [
        (_broken(_drop_metadata), "full-duplex/one-chunk", "metadata"),
        (_broken(_other_metadata), "full-duplex/one-chunk", "the header says"),
        (_broken(_append), "destination/client-header", "appended"),
        (_broken(_value_field), "destination/raw-values", "`value`"),
        (_broken(_plain_body), "full-duplex/one-chunk", "streamed_response"),
        (_broken(_reformatted), "full-duplex/one-chunk", "bytes went on"),
        (_broken(_other_status), "subset/none-eligible", "status 500"),
        (_broken(_plain_error), "request/no-model", '{"error"'),
        (_broken(_one_endpoint), "destination/fallbacks", "only one"),
        (_reversed, "full-duplex/one-chunk", "order"),
    ],
)
async def test_a_broken_picker_fails_in_the_right_case(change: Replies, case: str, says: str) -> None:
    results = await run_cases(CASES, _BrokenTarget(_core(), change), POOL, timeout_s=0.5, steering=False)
    failed = {result.name: result.detail for result in results if result.verdict is Verdict.FAIL}
    assert says in failed[case]


class _WholePool(FixedScheduler):
    """Ignores the subset, as a picker that fails open does."""

    def schedule(self, request: Any, now_ns: int) -> Any:
        request.subset = None
        return super().schedule(request, now_ns)


async def test_a_picker_that_ignores_the_hint_fails_in_every_subset_case() -> None:
    core = ProtocolCore(_WholePool([str(member) for member in POOL]))
    results = await run_cases(CASES, CoreTarget(core), POOL, timeout_s=0.5, steering=False)
    failed = {result.name for result in results if result.verdict is Verdict.FAIL}
    named = {case.name for case in CASES if case.name.startswith("subset/")} - {"subset/empty"}
    assert failed == named


async def test_a_small_pool_skips_what_it_cannot_show() -> None:
    pool = POOL[:1]
    target = CoreTarget(ProtocolCore(FixedScheduler([str(pool[0])])))
    results = await run_cases(CASES, target, pool, timeout_s=0.5, steering=False)
    verdicts = {result.name: result.verdict for result in results}
    assert verdicts["destination/fallbacks"] is Verdict.SKIP
    assert Verdict.FAIL not in verdicts.values()
