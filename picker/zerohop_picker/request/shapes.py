"""What is read of request bodies, as msgspec reads it: members that are not named here are skipped and not built.

In a module of its own because msgspec looks into these classes: it cannot do so once they are compiled.
"""

from __future__ import annotations

from typing import Any

import msgspec


class BodyFacts(msgspec.Struct):
    """What was read of a body."""

    model: str | None = None
    #: The body's own value; True alone asks for a stream.
    stream: Any = None


class ModelValue(msgspec.Struct):
    """The model's own bytes, to find where they are."""

    model: msgspec.Raw = msgspec.Raw()


class Message(msgspec.Struct):
    """One message of a conversation."""

    role: str = ""
    content: str | list[msgspec.Raw] | None = None
    name: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw()
    tool_call_id: str | None = None


class Chat(msgspec.Struct):
    """OpenAI chat and Anthropic messages; `system` is the latter's."""

    messages: list[Message] = []
    tools: msgspec.Raw = msgspec.Raw()
    system: str | list[msgspec.Raw] | None = None
    cache_salt: str | None = None


class Responses(msgspec.Struct):
    """OpenAI's Responses API."""

    input: str | list[msgspec.Raw] | None = None
    instructions: str | None = None
    tools: msgspec.Raw = msgspec.Raw()
    cache_salt: str | None = None


class Completions(msgspec.Struct):
    """Completions, SGLang's `text` and `input_ids`, vLLM's `token_ids`: the first that is there counts."""

    prompt: str | list[int | str | list[int]] | None = None
    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    cache_salt: str | None = None


class Part(msgspec.Struct):
    """One part of a message's content."""

    type: str = "text"
    text: str | None = None
    image_url: msgspec.Raw = msgspec.Raw()
    input_audio: msgspec.Raw = msgspec.Raw()
    video_url: msgspec.Raw = msgspec.Raw()
    audio_url: msgspec.Raw = msgspec.Raw()
    source: msgspec.Raw = msgspec.Raw()


class Url(msgspec.Struct):
    """An image by its URL, which may hold its data."""

    url: str


class Data(msgspec.Struct):
    """Audio, or an image of Anthropic's."""

    data: str


class Salt(msgspec.Struct):
    """The cache salt of a body that is not understood otherwise."""

    cache_salt: Any = None
