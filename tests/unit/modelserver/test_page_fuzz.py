"""Random pages: a reading never raises anything but SourceError, never holds nonsense, and depends on the page
alone."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fuzzing import play_for
from zerohop_agent.modelserver.page import PageReader
from zerohop_agent.modelserver.response import ResponseParser
from zerohop_agent.modelserver.sources import LIMITS
from zerohop_agent.signals import SIGNAL_NAMES, Signals, SourceError

_NAMES = st.sampled_from(
    [
        "vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:lora_requests_info",
        "vllm:cache_config_info", "vllm:engine_sleep_state", "vllm:num_requests_waiting_by_reason", "vllm_x",
        "sglang:num_queue_reqs", "nv_trt_llm_kv_cache_block_metrics", "tgi_queue_size", "python_info", "# HELP x", "",
    ]
)  # fmt: skip
_LABEL_NAMES = st.sampled_from(
    ["engine", "pid", "max_lora", "running_lora_adapters", "block_size", "priority", "le", ""]
)
_LABEL_VALUES = st.one_of(
    st.sampled_from(["0", "1", "None", "a,b", 'x"y', "{", "}", "\\", "\n", "#", ","]), st.text(max_size=6)
)
_VALUES = st.one_of(
    st.sampled_from(
        ["1", "0.5", "NaN", "+Inf", "-1", "1e400", "1_0", "", "9223372036854775794", "1 2", '1 # {a="b"} 1']
    ),
    st.floats().map(str),
    st.integers(0, 1000).map(str),
)
_SPACES = st.sampled_from([" ", "\t", "  ", ""])
_ENDS = st.sampled_from(["\n", "\r\n", "\n\n", ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


_LABELS = st.lists(st.tuples(_LABEL_NAMES, _LABEL_VALUES), max_size=3).map(
    lambda pairs: "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}" if pairs else ""
)
_LINES = st.one_of(
    st.builds(lambda *parts: "".join(parts), _NAMES, _LABELS, _SPACES, _VALUES, _ENDS),
    st.text(max_size=20),
    st.just("# EOF\n"),
)
_PAGES = st.lists(_LINES, max_size=12).map(lambda lines: "".join(lines).encode("utf-8", "surrogatepass"))


def read(reader: PageReader, page: bytes) -> Signals | None:
    try:
        signals = reader.read(page)
    except SourceError:
        return None
    for name in SIGNAL_NAMES:
        value = getattr(signals, name)
        if isinstance(value, float):
            low, high = LIMITS[name]
            assert math.isfinite(value)
            assert low <= value <= high
        elif isinstance(value, frozenset):
            assert all(value)
            assert all(isinstance(adapter, str) for adapter in value)
    return signals


def check(pages: Sequence[bytes]) -> None:
    """A reader that has seen other pages reads each page as a fresh one does, and so does one that reads it twice."""
    used = PageReader()
    for page in pages:
        fresh = PageReader()
        first = read(fresh, page)
        assert read(fresh, page) == first
        # A plan may miss a series that took another line's place until the next survey; a survey misses nothing.
        used._reads_left = 0
        assert read(used, page) == first


@given(st.lists(_PAGES, min_size=1, max_size=3))
def test_pages_made_of_lines(pages: list[bytes]) -> None:
    check(pages)


@given(st.lists(st.binary(max_size=80), min_size=1, max_size=3))
def test_bytes(pages: list[bytes]) -> None:
    check(pages)


@given(st.binary(max_size=200), st.lists(st.integers(1, 50), max_size=8))
def test_responses_in_any_pieces_are_the_same(tail: bytes, cuts: list[int]) -> None:
    for head in (
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"",
    ):
        whole = head + tail
        assert _respond([whole]) == _respond(_pieces(whole, cuts))


def _pieces(whole: bytes, cuts: Sequence[int]) -> list[bytes]:
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(whole[at : at + cut])
        at += cut
    return [piece for piece in [*pieces, whole[at:]] if piece]


def _respond(pieces: Sequence[bytes]) -> tuple[int, bytes] | str:
    parser = ResponseParser(1000)
    try:
        for piece in pieces:
            response = parser.feed(piece)
            if response is not None:
                return response.status, response.body
        response = parser.end()
    except SourceError as error:
        return error.reason.name
    return response.status, response.body


def _mutate(page: bytes, rng: random.Random) -> bytes:
    """Change a real page as a broken server or network would: bytes, lines, cuts, repeats."""
    for _ in range(rng.randint(1, 6)):
        kind, at = rng.randrange(6), rng.randrange(len(page) + 1)
        if kind == 0:
            page = page[:at] + bytes([rng.randrange(256)]) + page[at + 1 :]
        elif kind == 1:
            page = page[:at] + page[at + rng.randrange(40) :]
        elif kind == 2:
            page = page[:at] + rng.choice([b'"', b"{", b"}", b"\n", b" ", b"\\", b"#", b"NaN", b"e9"]) + page[at:]
        else:
            lines = page.split(b"\n")
            one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
            if kind == 3:
                lines[one], lines[other] = lines[other], lines[one]
            elif kind == 4:
                lines.insert(one, lines[other])
            else:
                del lines[one]
            page = b"\n".join(lines)
    return page


@pytest.mark.fuzz
@pytest.mark.timeout(120)
def test_a_minute_of_broken_real_pages(shared_data: object) -> None:
    folder = shared_data / "metrics"  # type: ignore[operator]
    pages = [path.read_bytes()[:60_000].rpartition(b"\n")[0] + b"\n" for path in sorted(folder.glob("*.prom"))]

    def play(rng: random.Random) -> None:
        page = rng.choice(pages)
        check([page, *(_mutate(page, rng) for _ in range(4))])

    play_for(20, play)


_ATHERIS = """
import sys, atheris
with atheris.instrument_imports(include=["zerohop_agent.modelserver"]):
    from zerohop_agent.modelserver.page import PageReader
    from zerohop_agent.modelserver.response import ResponseParser
from zerohop_agent.signals import SourceError

def once(data):
    reader = PageReader()
    for page in (data, b"vllm:num_requests_waiting 1\\n" + data, b"vllm:lora_requests_info" + data + b"\\n"):
        try:
            reader.read(page)
        except SourceError:
            pass
    parser = ResponseParser(1000)
    try:
        if parser.feed(b"HTTP/1.1 200 OK\\r\\n" + data) is None:
            parser.end()
    except SourceError:
        pass

atheris.Setup([sys.argv[0], "-max_total_time=" + sys.argv[1], "-timeout=5", "-max_len=400"], once)
atheris.Fuzz()
"""


@pytest.mark.fuzz
@pytest.mark.timeout(120)
def test_coverage_guided() -> None:
    pytest.importorskip("atheris")
    seconds = os.environ.get("ZEROHOP_FUZZ_SECONDS", "20")
    done = subprocess.run([sys.executable, "-c", _ATHERIS, seconds], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
