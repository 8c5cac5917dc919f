"""The canonical prompt: equal beginnings of conversations are equal beginnings of bytes, however they are written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerohop_picker.request.model import LLMRequest, RequestKind
from zerohop_picker.request.prompt import canonical

CHAT, MESSAGES, COMPLETIONS = RequestKind.CHAT, RequestKind.MESSAGES, RequestKind.COMPLETIONS


def prompt(kind: RequestKind, body: Any, **style: Any) -> bytes:
    return canonical(kind, json.dumps(body, **style).encode())[0]


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": _TEXT})


@given(st.lists(_MESSAGE, max_size=4), st.lists(_MESSAGE, min_size=1, max_size=3))
def test_a_longer_conversation_begins_with_the_shorter(first: list[Any], more: list[Any]) -> None:
    shorter = prompt(CHAT, {"model": "a", "messages": first})
    longer = prompt(CHAT, {"messages": first + more, "temperature": 0.5, "model": "b"}, indent=1, ensure_ascii=False)
    assert longer.startswith(shorter)
    assert len(longer) > len(shorter)


@given(st.lists(_MESSAGE, max_size=4), st.lists(_MESSAGE, max_size=4))
def test_different_conversations_differ(one: list[Any], other: list[Any]) -> None:
    assert (prompt(CHAT, {"messages": one}) == prompt(CHAT, {"messages": other})) == (one == other)


def test_roles_and_contents_do_not_run_into_each_other() -> None:
    one = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    other = [{"role": "user", "content": ""}, {"role": "auser", "content": "b"}]
    assert prompt(CHAT, {"messages": one}) != prompt(CHAT, {"messages": other})


def test_text_is_the_same_as_one_text_part() -> None:
    plain = prompt(CHAT, {"messages": [{"role": "user", "content": "hi"}]})
    parts = prompt(CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]})
    assert plain == parts


def test_tools_and_system_come_before_the_messages() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [{"name": "t"}], "system": "be brief"}
    text = prompt(MESSAGES, body)
    assert text.index(b'"name"') < text.index(b"be brief") < text.index(b"hi")
    other_tools = prompt(MESSAGES, {**body, "tools": [{"name": "u"}]})
    assert other_tools[: len(b'x[{"name": "u')] != text[: len(b'x[{"name": "t')]


def _with(part: dict[str, Any]) -> bytes:
    return prompt(CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]})


def test_images_and_audio_enter_as_a_hash() -> None:
    big = "data:image/png;base64," + "A" * 100_000
    one = _with({"type": "image_url", "image_url": {"url": big}})
    assert len(one) < 100
    assert one == _with({"image_url": {"detail": "low", "url": big}, "type": "image_url"}), "its bytes count"
    assert one == _with({"type": "image_url", "image_url": big})
    assert one != _with({"type": "image_url", "image_url": {"url": big + "B"}})
    audio = _with({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}})
    assert audio != _with({"type": "input_audio", "input_audio": {"data": "AAAB", "format": "wav"}})
    assert _with({"type": "file", "file": {"id": "f1"}}) != _with({"type": "file", "file": {"id": "f2"}})


def test_anthropic_images() -> None:
    def source(data: str) -> bytes:
        part = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
        return prompt(MESSAGES, {"messages": [{"role": "user", "content": [part]}]})

    assert source("AA") == source("AA") != source("BB")


def test_completions() -> None:
    assert prompt(COMPLETIONS, {"prompt": "hello"}) == b"hello"
    tokens = prompt(COMPLETIONS, {"prompt": [1, 2, 3]})
    assert prompt(COMPLETIONS, {"prompt": [1, 2, 3, 4]}).startswith(tokens)
    assert prompt(COMPLETIONS, {"prompt": [[1, 2], [3]]}) != prompt(COMPLETIONS, {"prompt": [[1], [2, 3]]})
    assert prompt(COMPLETIONS, {"prompt": ["a", "b"]}) != prompt(COMPLETIONS, {"prompt": ["ab"]})
    assert prompt(RequestKind.GENERATE, {"text": "hi"}) == b"hi"
    assert prompt(RequestKind.GENERATE, {"input_ids": [1, 2, 3]}) == tokens
    assert prompt(RequestKind.GENERATE, {"token_ids": [1, 2, 3]}) == tokens


def test_responses() -> None:
    text = prompt(RequestKind.RESPONSES, {"input": "hi", "instructions": "be brief"})
    listed = prompt(RequestKind.RESPONSES, {"input": [{"role": "user", "content": "hi"}], "instructions": "be brief"})
    assert text == listed
    called = prompt(RequestKind.RESPONSES, {"input": [{"type": "function_call", "name": "f"}]})
    assert called != prompt(RequestKind.RESPONSES, {"input": [{"type": "function_call", "name": "g"}]})


def test_tool_calls_count() -> None:
    def call(name: str) -> bytes:
        message = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": name}}]}
        return prompt(CHAT, {"messages": [message]})

    assert call("f") != call("g")


@pytest.mark.parametrize("kind", [RequestKind.EMBEDDINGS, RequestKind.RERANK, RequestKind.AUDIO, RequestKind.OTHER])
def test_kinds_without_a_prefix_cache_have_no_prompt(kind: RequestKind) -> None:
    assert prompt(kind, {"input": "hi", "prompt": "hi"}) == b""


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"messages":"x"}', b'{"messages":[7]}', b'{"prompt":{"a":1}}', b'{"prompt":[-1]}', b"\xff"]
)
@pytest.mark.parametrize("kind", [CHAT, COMPLETIONS])
def test_a_shape_that_is_not_understood_stands_for_itself(kind: RequestKind, body: bytes) -> None:
    found, salt = canonical(kind, body)
    assert found in (body, b"")
    assert salt is None


def test_the_cache_salt_is_read_once_and_kept() -> None:
    request = LLMRequest("id", kind=CHAT, body=b'{"messages":[{"role":"user","content":"x"}],"cache_salt":"s"}')
    assert request.prompt_bytes == len(request.body or b"")
    assert (request.cache_salt, request.prompt_bytes) == ("s", len(request.canonical_prompt()))
    assert request.canonical_prompt() is request.canonical_prompt()
    assert LLMRequest("id", kind=CHAT, body=b'{"messages":7,"cache_salt":"s"}').cache_salt == "s"
    assert LLMRequest("id").canonical_prompt() == b""


@given(st.sampled_from(list(RequestKind)), st.binary(max_size=200))
def test_nothing_raises(kind: RequestKind, body: bytes) -> None:
    canonical(kind, body)
