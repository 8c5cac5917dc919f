"""What a completion request asks for, and the shapes of its answers (chat and plain text)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from zerohop_console.mockserver.prefix_cache import BYTES_PER_TOKEN

_DEFAULT_MAX_TOKENS = 16
_WORDS = ("The", " answer", " comes", " from", " a", " server", " without", " a", " model", " .")


class BadRequest(Exception):
    """The request asks for nothing that can be done; the message is for the client."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One valid request. A token stands for four bytes of prompt, and for a word of the answer."""

    chat: bool
    model: str
    prompt: bytes
    prompt_tokens: int
    max_tokens: int
    stream: bool
    include_usage: bool

    @property
    def id_prefix(self) -> str:
        """What the answer's id starts with."""
        return "chatcmpl" if self.chat else "cmpl"

    @property
    def whole_object(self) -> str:
        """The `object` of a whole answer."""
        return "chat.completion" if self.chat else "text_completion"

    @property
    def chunk_object(self) -> str:
        """The `object` of a streamed part."""
        return "chat.completion.chunk" if self.chat else "text_completion"

    def word(self, index: int) -> str:
        """The text of the answer's token `index`."""
        return _WORDS[index % len(_WORDS)]

    def delta(self, text: str, *, first: bool, reason: str | None) -> dict[str, Any]:
        """The choices of a streamed part."""
        if not self.chat:
            return {"choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}]}
        delta = {"role": "assistant", "content": text} if first else {"content": text}
        return {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}

    def choice(self, text: str, reason: str) -> dict[str, Any]:
        """The only choice of a whole answer."""
        if not self.chat:
            return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        message = {"role": "assistant", "content": text}
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}


def read_completion(path: str, body: bytes) -> Completion:
    """Return what `body` asks for. Raises: BadRequest."""
    try:
        value = json.loads(body)
    except ValueError:
        raise BadRequest("the body is not JSON") from None
    if not isinstance(value, dict):
        raise BadRequest("the body is not a JSON object")
    model = value.get("model")
    if not isinstance(model, str):
        raise BadRequest("model is missing or not a string")
    chat = path.endswith("/chat/completions")
    prompt = value.get("messages" if chat else "prompt")
    if not prompt or not isinstance(prompt, list if chat else (str, list)):
        raise BadRequest("messages must be a list that is not empty" if chat else "prompt is missing")
    text, tokens = _prompt(prompt, token_ids=not chat)
    limit = value.get("max_completion_tokens", value.get("max_tokens"))
    limit = _DEFAULT_MAX_TOKENS if limit is None else limit
    if not isinstance(limit, int) or limit < 1:
        raise BadRequest("max_tokens must be a positive number")
    options = value.get("stream_options")
    include_usage = bool(options.get("include_usage")) if isinstance(options, dict) else False
    return Completion(chat, model, text, tokens, limit, bool(value.get("stream")), include_usage)


def _prompt(prompt: list[Any] | str, *, token_ids: bool) -> tuple[bytes, int]:
    """Return the prompt as bytes and its number of tokens."""
    if token_ids and isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
        return b"".join(b"%4d" % (token % 10_000) for token in prompt), len(prompt)
    text = prompt if isinstance(prompt, str) else "".join(_text(part) for part in prompt)
    raw = text.encode()
    return raw, max(1, -(-len(raw) // BYTES_PER_TOKEN))


def _text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise BadRequest("a message must be an object")
    content = part.get("content")
    if isinstance(content, list):
        content = "".join(item.get("text") or json.dumps(item) for item in content if isinstance(item, dict))
    return f"<{part.get('role', 'user')}>{content or ''}"
