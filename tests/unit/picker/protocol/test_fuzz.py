"""Any bytes and any order of messages: a fault or a legal answer, and everything released afterwards."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import extproc as x
from support.extproc import Exchange
from support.fuzzing import damaged, play_for
from support.schedulers import FixedScheduler
from zerohop_picker.protocol import ProtocolCore, ProtocolSettings, StreamFault

MODES = (None, *range(6))
_BODIES = st.sampled_from([b"", b"{", b'{"model":"m"}', b"x" * 500, b"data: [DONE]\n\n"])


def _headers(mode: int | None, response_mode: int, path: str, end: bool, kind: str) -> bytes:
    return x.request_headers(
        path, mode=mode, response_mode=response_mode, end=end, headers={"content-type": kind, "content-length": "500"}
    )


MESSAGES = st.one_of(
    st.builds(
        _headers,
        st.sampled_from(MODES),
        st.integers(0, 5),
        st.sampled_from(["/v1/chat/completions", "/x", "/v1/audio/translations"]),
        st.booleans(),
        st.sampled_from(["application/json", "application/grpc", "multipart/form-data; boundary=X"]),
    ),
    st.builds(lambda data, end: x.request_body(data, end=end), _BODIES, st.booleans()),
    st.builds(lambda data, end: x.response_body(data, end=end), _BODIES, st.booleans()),
    st.builds(lambda end: x.response_headers(end=end), st.booleans()),
    st.just(x.request_trailers()),
    st.just(x.response_trailers()),
    st.binary(max_size=60),
)


def _play(messages: list[bytes], response: str) -> None:
    scheduler = FixedScheduler(model="other")
    settings = ProtocolSettings(response=response, max_request_bytes=800, max_held_bytes=900, chunk_bytes=100)  # type: ignore[arg-type]
    core = ProtocolCore(scheduler, settings)
    it = Exchange(core)
    try:
        it.feed(*messages)
    except StreamFault:
        pass
    else:
        assert len(scheduler.tickets) <= 1
        assert it.destination is None or it.refusal is None
    finally:
        it.stream.close()
    assert scheduler.in_flight == 0
    assert core.counters.held_bytes == 0


@given(st.lists(MESSAGES, max_size=8), st.sampled_from(["skip", "observe"]))
def test_any_messages_in_any_order(messages: list[bytes], response: str) -> None:
    _play(messages, response)


#: Legal messages from which the long run makes others.
SEEDS = (
    x.request_headers(subset=["10.0.0.1:8000"], response_mode=4),
    x.request_headers(mode=2, end=True, observability=True),
    x.request_body(subset="10.0.0.1"),
    x.request_body(b"x" * 200, end=False),
    x.response_headers(served="10.0.0.1:8000"),
    x.response_body(b"data: [DONE]\n\n", end=True),
    x.request_trailers(),
    x.response_trailers(),
)


@pytest.mark.fuzz
@pytest.mark.timeout(150)
def test_mutated_messages() -> None:
    def play(rng: random.Random) -> None:
        messages = [damaged(rng.choice(SEEDS), rng, others=SEEDS) for _ in range(rng.randrange(1, 9))]
        _play(messages, rng.choice(("skip", "observe")))

    play_for(30, play)
