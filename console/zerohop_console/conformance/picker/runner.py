"""Runs cases against a target, whatever carries the messages."""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Iterable
from dataclasses import dataclass

from zerohop_console.conformance.picker.exchange import Ended, Exchange, Seen, Target
from zerohop_console.conformance.picker.messages import message_of
from zerohop_console.conformance.picker.script import (
    Cancel,
    Case,
    Level,
    Pool,
    Quiet,
    RequestBody,
    ResponseBody,
    ResponseHeaders,
    Step,
    Until,
    Wait,
)
from zerohop_picker._pb import extproc_pb2 as pb

#: How long the end of a stream may take to arrive after the last answer.
_LEAVING_SECONDS = 0.1


class Verdict(enum.StrEnum):
    """How a case ended."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True)
class Result:
    """One case's outcome."""

    name: str
    level: Level
    demands: str
    source: str
    verdict: Verdict
    detail: str
    seconds: float


async def run_cases(
    cases: Iterable[Case], target: Target, pool: Pool, *, timeout_s: float, steering: bool
) -> list[Result]:
    """Results of all cases, in order. Cases run one after the other."""
    return [await run_case(case, target, pool, timeout_s=timeout_s, steering=steering) for case in cases]


async def run_case(case: Case, target: Target, pool: Pool, *, timeout_s: float, steering: bool) -> Result:
    """One case's result; a skip where the pool or the picker's flags do not allow it."""
    started = time.monotonic()
    if len(pool) < case.pool:
        verdict, detail = Verdict.SKIP, f"needs a pool of {case.pool}"
    elif case.steering and not steering:
        verdict, detail = Verdict.SKIP, "needs --steering: a picker that honours test-epp-endpoint-selection"
    else:
        try:
            found = await asyncio.gather(*(_judge(case, target, pool, timeout_s) for _ in range(case.parallel)))
        except ConnectionError as error:
            found = [str(error)]
        wrong = next((sentence for sentence in found if sentence is not None), None)
        verdict, detail = (Verdict.PASS, "") if wrong is None else (Verdict.FAIL, wrong)
    return Result(case.name, case.level, case.demands, case.source, verdict, detail, time.monotonic() - started)


async def _judge(case: Case, target: Target, pool: Pool, timeout_s: float) -> str | None:
    seen = await _play(case, target, pool, timeout_s)
    if seen.ended is not None and seen.ended.status:
        return f"the stream ended with gRPC status {seen.ended.status}: {seen.ended.detail}"
    if seen.unexpected is not None:
        return seen.unexpected
    if seen.deserted:
        return "the picker ended the stream in the middle of the response: the rest of it is lost"
    for check in case.checks:
        sentence = check(seen, pool)
        if sentence is not None:
            return sentence if seen.missing is None else f"{seen.missing}; {sentence}"
    return seen.missing


async def _play(case: Case, target: Target, pool: Pool, timeout_s: float) -> Seen:
    player = _Player(target, pool, timeout_s)
    try:
        for step in case.steps:
            if player.seen.missing is not None or player.seen.refusal is not None:
                break
            if player.seen.ended is not None:
                player.seen.left = not player.seen.response_begun
                player.seen.deserted = player.seen.response_begun
                break
            await player.do(step)
        if any(check(player.seen, pool) for check in case.checks):
            await player.read_the_rest()
        return player.seen
    finally:
        await player.exchange.cancel()


class _Player:
    """One run of a case's steps."""

    def __init__(self, target: Target, pool: Pool, timeout_s: float):
        self._target = target
        self._pool = pool
        self._timeout_s = timeout_s
        self.exchange: Exchange = target.open()
        self.seen = Seen()

    async def do(self, step: Step) -> None:
        """Does one step."""
        if isinstance(step, Wait):
            await self._wait(step.until)
        elif isinstance(step, Quiet):
            await self._listen(step.seconds)
        elif isinstance(step, Cancel):
            await self.exchange.cancel()
            self.exchange, self.seen = self._target.open(), Seen()
        else:
            await self._send(step)

    async def read_the_rest(self) -> None:
        """Reads what was not waited for, so that a failure is told by what came and not by when it was looked at."""
        while self.seen.ended is None and await self._read_once(_LEAVING_SECONDS):
            pass

    async def _send(self, step: Step) -> None:
        if self.seen.of("request_body") and await self._has_left():
            return
        if isinstance(step, RequestBody):
            self.seen.request += step.data
        elif isinstance(step, ResponseBody):
            self.seen.response.append(step.data)
        self.seen.response_begun |= isinstance(step, ResponseHeaders | ResponseBody)
        await self.exchange.send(message_of(step, self._pool))

    async def _has_left(self) -> bool:
        """Whether the picker ended the stream after the request, as it may. A moment is given for its end to arrive."""
        if not self.seen.response_begun:
            await self._read_once(_LEAVING_SECONDS)
        return self.seen.ended is not None

    async def _wait(self, until: Until) -> None:
        before = _count(self.seen.replies, until)
        wanted = 1 if until is Until.REQUEST_BODY_END else before + 1
        deadline = time.monotonic() + self._timeout_s
        while _count(self.seen.replies, until) < wanted and not self.seen.over:
            left = deadline - time.monotonic()
            if left <= 0 or not await self._read_once(left):
                self.seen.missing = f"{until} did not come within {self._timeout_s:g} s"
                return

    async def _listen(self, seconds: float) -> None:
        before = len(self.seen.replies)
        if await self._read_once(seconds) and len(self.seen.replies) > before:
            kind = self.seen.replies[-1].WhichOneof("response")
            self.seen.unexpected = f"{kind} came where no reply is due"

    async def _read_once(self, timeout_s: float) -> bool:
        try:
            got = await self.exchange.receive(timeout_s)
        except TimeoutError:
            return False
        if isinstance(got, Ended):
            self.seen.ended = got
        else:
            self.seen.replies.append(pb.ProcessingResponse.FromString(got))
        return True


def _count(replies: list[pb.ProcessingResponse], until: Until) -> int:
    return sum(_is(reply, until) for reply in replies)


def _is(reply: pb.ProcessingResponse, until: Until) -> bool:
    kind = reply.WhichOneof("response")
    if until is Until.REQUEST_BODY_END:
        chunk = reply.request_body.response.body_mutation.streamed_response
        return kind == "request_body" and (chunk.end_of_stream or chunk.end_of_stream_without_message)
    return bool(kind == _KINDS[until])


_KINDS = {
    Until.REQUEST_HEADERS: "request_headers",
    Until.REQUEST_BODY: "request_body",
    Until.REQUEST_TRAILERS: "request_trailers",
    Until.RESPONSE_HEADERS: "response_headers",
    Until.RESPONSE_BODY: "response_body",
    Until.RESPONSE_TRAILERS: "response_trailers",
}
