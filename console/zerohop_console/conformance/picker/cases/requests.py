"""Requests of every kind: what is routed, what is refused, and that streams do not touch each other."""

from __future__ import annotations

from zerohop_console.conformance.picker import checks as c
from zerohop_console.conformance.picker.cases.shared import BODY_END, FORWARDED, cut, posted
from zerohop_console.conformance.picker.script import CHAT, Cancel, Case, Level, RequestBody, RequestHeaders

MUST, SHOULD, OURS = Level.MUST, Level.SHOULD, Level.OURS

_FORM = (
    b"--X\r\n" + b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + bytes(range(256)) * 40
) + b'\r\n--X\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--X--\r\n'


def _bad(name: str, body: bytes, demands: str, source: str, level: Level = SHOULD) -> Case:
    return Case(
        f"request/{name}",
        level,
        demands,
        source,
        posted(body),
        (c.refused(400), c.error_shape, c.body_not_quoted(b"secret-in-body")),
    )


def _routed(name: str, path: str, body: bytes, *, content_type: str = "application/json") -> Case:
    return Case(
        f"request/{name}",
        SHOULD,
        f"POST {path} is routed, its body unchanged.",
        "GIE#2418, LDR#2506, LDR#2807: paths beside chat",
        posted(body, path=path, content_type=content_type),
        FORWARDED,
    )


REQUESTS = (
    _bad(
        "invalid-json",
        b'{"model":"secret-in-body","messages":[',
        "A body that is cut is the client's fault: 400, and it is not quoted.",
        "vllm-project/semantic-router#1556",
    ),
    _bad(
        "no-model",
        b'{"messages":[]}',
        "A chat request without a model is answered with 400.",
        "llm-d; semantic-router#1556",
    ),
    _bad(
        "not-an-object", b'["secret-in-body"]', "JSON that is no object is answered with 400.", "semantic-router#1556"
    ),
    _bad(
        "model-not-a-string",
        b'{"model":7}',
        "A model that is no string is answered with 400.",
        "semantic-router#1556",
        OURS,
    ),
    _bad("empty-body", b"", "An empty body on a chat path is answered with 400.", "semantic-router#1556", OURS),
    _routed("completions", "/v1/completions", b'{"model":"m","prompt":[1,2,3]}'),
    _routed("responses", "/v1/responses", b'{"model":"m","input":"hi"}'),
    _routed("embeddings", "/v1/embeddings", b'{"model":"e5","input":["a","b"]}'),
    _routed("rerank", "/v1/rerank", b'{"model":"r","query":"q","documents":["d"]}'),
    _routed("anthropic-messages", "/v1/messages", b'{"model":"m","max_tokens":9,"messages":[]}'),
    _routed("anthropic-count-tokens", "/v1/messages/count_tokens", b'{"model":"m","messages":[]}'),
    _routed("images", "/v1/images/generations", b'{"model":"m","prompt":"p"}'),
    _routed("audio-form", "/v1/audio/transcriptions", _FORM, content_type="multipart/form-data; boundary=X"),
    _routed("broken-form", "/v1/audio/transcriptions", _FORM, content_type="multipart/form-data; boundary=Y"),
    _routed("unknown-path", "/tokenize", b"\xff\xfe no JSON"),
    Case(
        "request/values-in-value",
        SHOULD,
        "Header values are read from `value` where raw_value is empty.",
        "envoyproxy/envoy#31555",
        posted(CHAT, raw_values=False),
        FORWARDED,
    ),
    Case(
        "request/upper-case-names",
        OURS,
        "Header names are compared without regard to case.",
        "RFC 9110 5.1",
        posted(CHAT, upper_case=True, subset=("{0}",)),
        FORWARDED,
    ),
    Case(
        "request/many-at-once",
        MUST,
        "Exchanges at the same time do not touch each other.",
        "Envoy: one connection, many streams",
        (RequestHeaders(), *cut(CHAT, 20), BODY_END),
        FORWARDED,
        parallel=32,
    ),
    Case(
        "request/reset-then-next",
        MUST,
        "A stream that the gateway resets in mid-body leaves the next one unharmed.",
        "Envoy resets nearly every stream",
        (RequestHeaders(), RequestBody(CHAT[:10], end=False), Cancel(), *posted(CHAT)),
        FORWARDED,
    ),
)
