from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from zerohop_process import log


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("zerohop")
    saved = root.handlers[:], root.level, ours.level, log._format
    yield
    root.handlers[:], root.level, ours.level, log._format = saved


def test_an_event_is_one_line_of_text_with_its_fields() -> None:
    out = io.StringIO()
    log.configure("text", "agent", stream=out)
    log.event(log.get("x"), "warning", "endpoint\nlost", address="10.0.0.1:8000", reason='said "no"', empty="")
    assert out.getvalue().count("\n") == 1
    stamp, _, rest = out.getvalue().partition(" ")
    assert stamp.endswith("Z")
    assert rest == 'warning agent: endpoint\\nlost address=10.0.0.1:8000 reason="said \\"no\\"" empty=""\n'


def test_an_event_is_one_json_object_with_its_fields() -> None:
    out = io.StringIO()
    log.configure("json", "agent", stream=out)
    log.event(log.get("x"), "info", "endpoint added", address="10.0.0.1:8000", count=3, level="mine")
    line = json.loads(out.getvalue())
    assert (line["message"], line["address"], line["count"]) == ("endpoint added", "10.0.0.1:8000", 3)
    assert (line["level"], line["program"], line["logger"]) == ("info", "agent", "x")


def test_a_traceback_stays_in_its_line() -> None:
    for form in ("text", "json"):
        out = io.StringIO()
        log.configure("text" if form == "text" else "json", "agent", stream=out)
        try:
            raise ValueError("boom")
        except ValueError:
            log.get("x").exception("collector failed")
        assert out.getvalue().count("\n") == 1
        assert "boom" in out.getvalue()


def test_the_level_holds_for_us_and_others_only_warn() -> None:
    out = io.StringIO()
    log.configure("text", "agent", level="debug", stream=out)
    log.event(log.get("x"), "debug", "detail")
    logging.getLogger("other").info("chatter")
    logging.getLogger("other").warning("trouble")
    assert "detail" in out.getvalue()
    assert "chatter" not in out.getvalue()
    assert "trouble" in out.getvalue()


def test_a_lasting_fault_is_logged_once_and_its_end_once() -> None:
    out = io.StringIO()
    log.configure("text", "agent", stream=out)
    once, logger = log.OncePerChange(), log.get("x")
    for state in ("refused", "refused", "ok", "ok", "refused"):
        once.log(logger, "warning", "10.0.0.1:8000", state, "endpoint is now", state=state)
    once.log(logger, "warning", "10.0.0.2:8000", "refused", "endpoint is now", state="refused")
    assert [line.rsplit("=")[-1] for line in out.getvalue().splitlines()] == ["refused", "ok", "refused", "refused"]
    assert not once.changed("10.0.0.1:8000", "refused")
    once.forget("10.0.0.1:8000")
    assert once.changed("10.0.0.1:8000", "refused")
