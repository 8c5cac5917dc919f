"""The canonical prompt: one byte string per request, whose prefixes are the prefixes of the conversation.

Two requests whose conversations begin alike have canonical prompts that begin alike, however their JSON was written
(escapes, white space between members, the order of members around `messages`). Order follows what chat templates do:
tools first, then the system prompt, then the messages, each as `role, content, tool calls`. Images, audio and files
enter as a 16-byte hash of what the client sent for them (the data or the URL): their megabytes are no prefix text.

Separators are bytes that no UTF-8 text contains (0xF8..0xFF), so no content can imitate one. Kinds whose servers reuse
no prefix (embeddings, rerank, images, audio, unknown) have an empty prompt.
"""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import xxhash

from zerohop_picker.request.kinds import RequestKind
from zerohop_picker.request.shapes import Chat, Completions, Data, Message, Part, Responses, Salt, Url

_MESSAGE = b"\xff"
_CONTENT = b"\xfe"
_PART = b"\xfd"
_HASH = b"\xfc"
_CALLS = b"\xfb"
_TOOLS = b"\xfa"
_TOKENS = b"\xf9"
_NEXT = b"\xf8"

_ABSENT = (b"", b"null")
_UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError, OverflowError, ValueError)


_chat = msgspec.json.Decoder(Chat)
_responses = msgspec.json.Decoder(Responses)
_completions = msgspec.json.Decoder(Completions)
_message = msgspec.json.Decoder(Message)
_part = msgspec.json.Decoder(Part)
_salt = msgspec.json.Decoder(Salt)
_url = msgspec.json.Decoder(Url | str)
_data = msgspec.json.Decoder(Data | str)


def canonical(kind: RequestKind, body: bytes) -> tuple[bytes, str | None]:
    """(canonical prompt, cache salt) of one body; never raises.

    A body whose shape is not understood is its own canonical prompt: equal bodies still share a prefix.
    """
    try:
        if kind in (RequestKind.CHAT, RequestKind.MESSAGES):
            return _of_chat(_chat.decode(body))
        if kind is RequestKind.RESPONSES:
            return _of_responses(_responses.decode(body))
        if kind in (RequestKind.COMPLETIONS, RequestKind.GENERATE):
            return _of_completions(_completions.decode(body))
    except _UNREADABLE:
        return body, _salt_only(body)
    return b"", None


def _of_chat(chat: Chat) -> tuple[bytes, str | None]:
    out: list[bytes | memoryview] = []
    _add_tools(out, chat.tools)
    if chat.system is not None:
        out += (_MESSAGE, b"system", _CONTENT)
        _add_content(out, chat.system)
    for message in chat.messages:
        _add_message(out, message)
    return b"".join(out), chat.cache_salt


def _of_responses(request: Responses) -> tuple[bytes, str | None]:
    out: list[bytes | memoryview] = []
    _add_tools(out, request.tools)
    if request.instructions is not None:
        out += (_MESSAGE, b"system", _CONTENT, request.instructions.encode())
    if isinstance(request.input, str):
        out += (_MESSAGE, b"user", _CONTENT, request.input.encode())
    for item in request.input if isinstance(request.input, list) else ():
        try:
            message = _message.decode(item)
        except msgspec.DecodeError:
            message = Message()
        if message.role:
            _add_message(out, message)
        else:  # a call, its output, a reference: no role, and no shape worth taking apart
            out += (_MESSAGE, memoryview(item))
    return b"".join(out), request.cache_salt


def _of_completions(request: Completions) -> tuple[bytes, str | None]:
    for prompt in (request.prompt, request.text, request.token_ids, request.prompt_token_ids, request.input_ids):
        if prompt is not None:
            return _text_or_tokens(prompt), request.cache_salt
    return b"", request.cache_salt


def _text_or_tokens(prompt: Any) -> bytes:
    if isinstance(prompt, str):
        return prompt.encode()
    if prompt and isinstance(prompt[0], int):
        return _TOKENS + _tokens(prompt)
    return _NEXT.join(item.encode() if isinstance(item, str) else _TOKENS + _tokens(item) for item in prompt)


def _tokens(ids: list[int]) -> bytes:
    """Token ids as 32-bit little-endian words, so that equal leading tokens are equal leading bytes."""
    return array("I", ids).tobytes()


def _add_tools(out: list[bytes | memoryview], tools: msgspec.Raw) -> None:
    raw = bytes(tools)
    if raw not in _ABSENT:
        out += (_TOOLS, raw)


def _add_message(out: list[bytes | memoryview], message: Message) -> None:
    out += (_MESSAGE, message.role.encode(), _CONTENT)
    if message.content is not None:
        _add_content(out, message.content)
    calls = bytes(message.tool_calls)
    if calls not in _ABSENT:
        out += (_CALLS, calls)
    if message.name is not None:
        out += (_CALLS, message.name.encode())
    if message.tool_call_id is not None:
        out += (_CALLS, message.tool_call_id.encode())


def _add_content(out: list[bytes | memoryview], content: str | list[msgspec.Raw]) -> None:
    if isinstance(content, str):
        out.append(content.encode())
        return
    for index, raw in enumerate(content):
        if index:
            out.append(_PART)
        _add_part(out, raw)


def _add_part(out: list[bytes | memoryview], raw: msgspec.Raw) -> None:
    try:
        part = _part.decode(raw)
    except msgspec.DecodeError:
        part = Part(type="?")
    if part.text is not None and part.type in ("text", "input_text", "output_text"):
        out.append(part.text.encode())
        return
    payload = _payload(part)
    out += (_HASH, part.type.encode(), xxhash.xxh3_128_digest(memoryview(raw) if payload is None else payload))


def _payload(part: Part) -> bytes | None:
    """What identifies an image or audio part: its URL (a data URL holds the bytes) or data; None: the whole part."""
    for raw, decoder in (
        (part.image_url, _url),
        (part.video_url, _url),
        (part.audio_url, _url),
        (part.input_audio, _data),
        (part.source, _data),
    ):
        if len(memoryview(raw)):
            try:
                value: Any = decoder.decode(raw)
            except msgspec.DecodeError:
                return None
            if isinstance(value, Url):
                return value.url.encode()
            return value.data.encode() if isinstance(value, Data) else str(value).encode()
    return None


def _salt_only(body: bytes) -> str | None:
    try:
        salt = _salt.decode(body).cache_salt
    except _UNREADABLE:
        return None
    return salt if isinstance(salt, str) else None
