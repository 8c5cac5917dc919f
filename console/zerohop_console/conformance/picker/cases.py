"""The cases: version 1 of the endpoint picker conformance suite. One place, data only.

A case is added with the rule it stands for and where that rule comes from; a case is never weakened for one picker.
`EPP` is the Endpoint Picker Protocol 1.0 of the Gateway API Inference Extension, `Envoy` the ext-proc contract.
"""

from __future__ import annotations

from zerohop_console.conformance.picker import checks as c
from zerohop_console.conformance.picker.script import (
    CHAT,
    Cancel,
    Case,
    Level,
    Mode,
    Quiet,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    Until,
    Wait,
)

#: Raised when a case is added or changes what it demands.
SUITE_VERSION = "1"

MUST, SHOULD, OURS = Level.MUST, Level.SHOULD, Level.OURS
HEADERS, BODY_END, TRAILERS = (
    Wait(Until.REQUEST_HEADERS),
    Wait(Until.REQUEST_BODY_END),
    Wait(Until.REQUEST_TRAILERS),
)
#: What holds for every request that is forwarded in FULL_DUPLEX_STREAMED mode.
FORWARDED = (c.picked, c.headers_first, c.body_identical, c.destination_overwrites)
_FAR = "192.0.2.7:9"  # TEST-NET-1: a member of no pool
_BIG = b'{"model":"conformance","messages":[{"role":"user","content":"' + b"lorem ipsum " * 25_000 + b'"}]}'
_FORM = (
    b"--X\r\n" + b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + bytes(range(256)) * 40
) + b'\r\n--X\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--X--\r\n'


def _cut(body: bytes, size: int, *, last_empty: bool = False) -> tuple[RequestBody, ...]:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    if last_empty:
        parts.append(b"")
    return tuple(RequestBody(part, end=at == len(parts) - 1) for at, part in enumerate(parts))


def _posted(body: bytes, **kwargs: object) -> tuple[RequestHeaders | RequestBody | Wait, ...]:
    return RequestHeaders(**kwargs), RequestBody(body), BODY_END  # type: ignore[arg-type]


BODY_MODES = (
    Case(
        "full-duplex/one-chunk",
        MUST,
        "A destination comes as header and as metadata with one value, then the body, unchanged.",
        "EPP: FULL_DUPLEX_STREAMED is mandatory; destination in both places",
        _posted(CHAT),
        FORWARDED,
    ),
    Case(
        "full-duplex/many-chunks",
        MUST,
        "A body cut anywhere is the same body.",
        "Envoy: chunks end where the network's do",
        (RequestHeaders(), *_cut(CHAT, 7), BODY_END),
        FORWARDED,
    ),
    Case(
        "full-duplex/end-in-empty-chunk",
        MUST,
        "The end of the body may come in a chunk without bytes.",
        "Envoy sends a small POST as data and then an empty end; GIE#2115",
        (RequestHeaders(), *_cut(CHAT, 4096, last_empty=True), BODY_END),
        FORWARDED,
    ),
    Case(
        "full-duplex/end-in-trailers",
        MUST,
        "The end of the body may come as trailers; they are answered after the body.",
        "Envoy: trailers instead of end_of_stream",
        (RequestHeaders(), RequestBody(CHAT, end=False), RequestTrailers(), TRAILERS),
        FORWARDED,
    ),
    Case(
        "full-duplex/end-twice",
        MUST,
        "A second end of the body is no second request.",
        "GIE#2988, envoyproxy/envoy#46237: seen with Envoy 1.35 to 1.37 above 1 MB",
        (RequestHeaders(), RequestBody(CHAT), BODY_END, RequestBody(b""), Quiet()),
        (*FORWARDED, c.not_refused),
    ),
    Case(
        "full-duplex/large-body",
        MUST,
        "A body of 300 kB arrives whole and in order.",
        "Envoy: what is not sent back is lost",
        (RequestHeaders(), *_cut(_BIG, 32_768), BODY_END),
        FORWARDED,
    ),
    Case(
        "full-duplex/chunk-size",
        SHOULD,
        "No streamed chunk is longer than 64 KiB.",
        "Envoy: recommended limit of streamed_response",
        (RequestHeaders(), *_cut(_BIG, 200_000), BODY_END),
        (c.picked, c.body_identical, c.chunks_small),
    ),
    Case(
        "full-duplex/modes-not-stated",
        OURS,
        "A gateway that sends no protocol_config gets FULL_DUPLEX_STREAMED.",
        "EPP demands this mode; Envoy before 1.33 and some gateways do not state it",
        _posted(CHAT, mode=None),
        FORWARDED,
    ),
    Case(
        "headers-only/get",
        MUST,
        "A request without a body is answered at once, with a destination.",
        "GIE PR#555: no body message follows",
        (RequestHeaders("/v1/models", "GET", end=True), HEADERS),
        (c.picked, c.destination_overwrites),
    ),
    Case(
        "headers-only/body-not-shown",
        MUST,
        "Where the gateway shows no bodies, the headers are answered at once with a destination.",
        "Envoy: request body mode NONE, stated in protocol_config",
        (RequestHeaders(mode=Mode.NONE), HEADERS),
        (c.picked, c.destination_overwrites),
    ),
    Case(
        "buffered/whole-body",
        SHOULD,
        "Headers are answered at once; the answer to the body carries the destination and leaves the body as it is.",
        "Envoy waits for the answer to the headers before it sends the body; LDR#858 deadlocks",
        (
            RequestHeaders(mode=Mode.BUFFERED),
            HEADERS,
            RequestBody(CHAT),
            Wait(Until.REQUEST_BODY),
        ),
        (c.picked, c.body_untouched, c.destination_overwrites),
    ),
    Case(
        "buffered/partial-body",
        OURS,
        "The beginning of a body is enough for a destination.",
        "Envoy: BUFFERED_PARTIAL ends a long body without end_of_stream",
        (
            RequestHeaders(mode=Mode.BUFFERED_PARTIAL),
            HEADERS,
            RequestBody(CHAT[:40], end=False),
            Wait(Until.REQUEST_BODY),
        ),
        (c.picked, c.body_untouched),
    ),
    Case(
        "streamed/headers-carry-the-pick",
        OURS,
        "The answer to the headers carries the destination: later header mutations are ignored.",
        "Envoy: STREAMED",
        (RequestHeaders(mode=Mode.STREAMED), HEADERS),
        (c.picked, c.destination_overwrites),
    ),
    Case(
        "grpc/one-message-one-answer",
        OURS,
        "In GRPC mode each message goes back as it came.",
        "Envoy: body mode GRPC",
        (
            RequestHeaders("/vllm.grpc.engine.VllmEngine/Generate", mode=Mode.GRPC, content_type="application/grpc"),
            RequestBody(b"\x00\x01\x02one", end=False),
            RequestBody(b"two"),
            BODY_END,
        ),
        FORWARDED,
    ),
    Case(
        "observability/no-answers",
        OURS,
        "In observability mode nothing is answered.",
        "Envoy: observability_mode ignores answers",
        (RequestHeaders(observability=True, end=True), Quiet()),
        (c.nothing_answered,),
    ),
)

DESTINATIONS = (
    Case(
        "destination/fallbacks",
        OURS,
        "More than one endpoint is named, in order.",
        "EPP allows a list; GIE#459: retries walk down it",
        _posted(CHAT),
        (c.picked, c.fallbacks_named),
        pool=2,
    ),
    Case(
        "destination/client-header",
        MUST,
        "A destination that a client sends is overwritten, not followed and not kept beside ours.",
        "agentgateway PR#3144; override_host by header would follow it",
        _posted(CHAT, headers={c.DESTINATION: _FAR}),
        FORWARDED,
    ),
    Case(
        "destination/raw-values",
        SHOULD,
        "Header values are written to raw_value only.",
        "envoyproxy/envoy#31555: Envoy reads nothing else; both together are an error",
        _posted(CHAT),
        (c.picked, c.raw_values_only),
    ),
    Case(
        "destination/request-id",
        OURS,
        "A request without x-request-id gets one.",
        "the field's pickers generate it",
        _posted(CHAT, request_id=None),
        (c.picked, c.request_id_set),
    ),
    Case(
        "subset/list",
        MUST,
        "Only endpoints of the hint are named.",
        "EPP: envoy.lb.subset_hint",
        _posted(CHAT, subset=("{1}",)),
        (c.picked_among("{1}"), c.body_identical),
        pool=2,
    ),
    Case(
        "subset/partial",
        MUST,
        "Entries of the hint that are no members of the pool are passed over.",
        "EPP: envoy.lb.subset_hint",
        _posted(CHAT, subset=(_FAR, "{0}")),
        (c.picked_among("{0}"),),
        pool=2,
    ),
    Case(
        "subset/headers-only",
        MUST,
        "The hint holds for requests without a body, too.",
        "EPP: envoy.lb.subset_hint; the field's pickers bypass it",
        (RequestHeaders("/v1/models", "GET", end=True, subset=("{1}",)), HEADERS),
        (c.picked_among("{1}"),),
        pool=2,
    ),
    Case(
        "subset/on-body",
        SHOULD,
        "The hint may come with a body message.",
        "llm-d reads it there, lwepp from the headers; Envoy puts it on both",
        (RequestHeaders(), RequestBody(CHAT, subset=("{1}",)), BODY_END),
        (c.picked_among("{1}"),),
        pool=2,
    ),
    Case(
        "subset/as-string",
        OURS,
        "A hint that is one string with commas is not ignored.",
        "llm-d fails open to all endpoints there",
        _posted(CHAT, subset=f"{_FAR}, {{1}}"),
        (c.picked_among("{1}"),),
        pool=2,
    ),
    Case(
        "subset/bare-ip",
        OURS,
        "An IP without a port allows all ports of that IP.",
        "lwepp",
        _posted(CHAT, subset=("{0.host}",)),
        (c.picked_on_host("{0.host}"),),
    ),
    Case(
        "subset/port-counts",
        MUST,
        "An entry allows its own port only.",
        "EPP names ip:port; llm-d compares IPs, which is wrong for data-parallel ranks",
        _posted(CHAT, subset=("{0.host}:1",)),
        (c.refused(503),),
    ),
    Case(
        "subset/empty",
        MUST,
        "A hint that is there and empty is answered with 503.",
        "EPP: present but empty",
        _posted(CHAT, subset=()),
        (c.refused(503),),
    ),
    Case(
        "subset/none-eligible",
        MUST,
        "A hint that names no member of the pool is answered with 503.",
        "EPP: nothing eligible",
        _posted(CHAT, subset=(_FAR,)),
        (c.refused(503),),
    ),
    Case(
        "subset/none-eligible-reason",
        SHOULD,
        "That refusal names its reason, in OpenAI's error shape.",
        "llm-d: x-llm-d-request-dropped-reason",
        _posted(CHAT, subset=(_FAR,)),
        (c.refused(503), c.dropped_reason("rejected-no-endpoints"), c.error_shape),
    ),
    Case(
        "steering/selected-endpoint",
        SHOULD,
        "With test-epp-endpoint-selection, the endpoint it names is picked.",
        "Gateway conformance suite",
        _posted(CHAT, headers={"test-epp-endpoint-selection": "{1}"}),
        (c.picked_among("{1}"),),
        pool=2,
        steering=True,
    ),
    Case(
        "steering/above-the-hint",
        SHOULD,
        "test-epp-endpoint-selection stands above the subset hint.",
        "Gateway conformance suite",
        _posted(CHAT, headers={"test-epp-endpoint-selection": "{1}"}, subset=("{0}",)),
        (c.picked_among("{1}"),),
        pool=2,
        steering=True,
    ),
    Case(
        "steering/served-endpoint",
        SHOULD,
        "The endpoint that the gateway reports as served is set on the response.",
        "Gateway conformance suite: x-conformance-test-served-endpoint",
        (
            *_posted(CHAT, response_mode=Mode.FULL_DUPLEX_STREAMED),
            ResponseHeaders(served="{0}"),
            Wait(Until.RESPONSE_HEADERS),
        ),
        (c.picked, c.response_header("x-conformance-test-served-endpoint", "{0}")),
        steering=True,
    ),
)


def _bad(name: str, body: bytes, demands: str, source: str, level: Level = SHOULD) -> Case:
    return Case(
        f"request/{name}",
        level,
        demands,
        source,
        _posted(body),
        (c.refused(400), c.error_shape, c.body_not_quoted(b"secret-in-body")),
    )


def _routed(name: str, path: str, body: bytes, *, content_type: str = "application/json") -> Case:
    return Case(
        f"request/{name}",
        SHOULD,
        f"POST {path} is routed, its body unchanged.",
        "GIE#2418, LDR#2506, LDR#2807: paths beside chat",
        _posted(body, path=path, content_type=content_type),
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
        _posted(CHAT, raw_values=False),
        FORWARDED,
    ),
    Case(
        "request/upper-case-names",
        OURS,
        "Header names are compared without regard to case.",
        "RFC 9110 5.1",
        _posted(CHAT, upper_case=True, subset=("{0}",)),
        FORWARDED,
    ),
    Case(
        "request/many-at-once",
        MUST,
        "Exchanges at the same time do not touch each other.",
        "Envoy: one connection, many streams",
        (RequestHeaders(), *_cut(CHAT, 20), BODY_END),
        FORWARDED,
        parallel=32,
    ),
    Case(
        "request/reset-then-next",
        MUST,
        "A stream that the gateway resets in mid-body leaves the next one unharmed.",
        "Envoy resets nearly every stream",
        (RequestHeaders(), RequestBody(CHAT[:10], end=False), Cancel(), *_posted(CHAT)),
        FORWARDED,
    ),
)

_EVENTS = (*(b'data: {"choices":[{"delta":{"content":"%d"}}]}\n\n' % n for n in range(20)), b"data: [DONE]\n\n")


def _streamed_answer() -> tuple[ResponseHeaders | ResponseBody | Wait, ...]:
    steps: list[ResponseHeaders | ResponseBody | Wait] = [ResponseHeaders(), Wait(Until.RESPONSE_HEADERS)]
    for at, event in enumerate(_EVENTS):
        steps += [ResponseBody(event, end=at == len(_EVENTS) - 1), Wait(Until.RESPONSE_BODY)]
    return tuple(steps)


RESPONSES = (
    Case(
        "response/echoed-at-once",
        MUST,
        "Each chunk of a streamed response goes back before the next comes; or the picker leaves after the request.",
        "EPP, as gateways force FULL_DUPLEX_STREAMED responses; agentgateway#724",
        (
            *_posted(CHAT, response_mode=Mode.FULL_DUPLEX_STREAMED),
            *_streamed_answer(),
        ),
        (*FORWARDED, c.response_echoed),
    ),
    Case(
        "response/trailers",
        MUST,
        "Response trailers are answered, after the body; or the picker leaves after the request.",
        "Envoy waits for the answer",
        (
            *_posted(CHAT, response_mode=Mode.FULL_DUPLEX_STREAMED),
            ResponseHeaders(),
            Wait(Until.RESPONSE_HEADERS),
            ResponseBody(b"{}", end=False),
            Wait(Until.RESPONSE_BODY),
            ResponseTrailers(),
            Wait(Until.RESPONSE_TRAILERS),
        ),
        (c.picked, c.headers_first, c.response_echoed),
    ),
    Case(
        "response/end-twice",
        OURS,
        "A second end of the response is ignored.",
        "as for the request",
        (
            *_posted(CHAT, response_mode=Mode.FULL_DUPLEX_STREAMED),
            ResponseHeaders(),
            Wait(Until.RESPONSE_HEADERS),
            ResponseBody(b"{}", end=True),
            Wait(Until.RESPONSE_BODY),
            ResponseBody(b"", end=True),
            Quiet(),
        ),
        (c.picked, c.response_echoed),
    ),
    Case(
        "response/crosses-a-large-body",
        OURS,
        "An answer that comes while a large body is on its way back is passed on whole.",
        "seen with Envoy 1.40: a picker that leaves then makes it forward an empty body",
        (
            RequestHeaders(response_mode=Mode.FULL_DUPLEX_STREAMED),
            *_cut(_BIG, 32_768),
            ResponseHeaders(413),
            ResponseBody(b"too long", end=True),
            Wait(Until.RESPONSE_BODY),
        ),
        (c.picked, c.response_echoed),
    ),
    Case(
        "response/before-the-request-ends",
        OURS,
        "An answer that comes before the request's body ended is passed on: it may be the gateway's own 504.",
        "Envoy sends its local replies through the same stream",
        (
            RequestHeaders(response_mode=Mode.FULL_DUPLEX_STREAMED),
            RequestBody(CHAT[:10], end=False),
            ResponseHeaders(504),
            Wait(Until.RESPONSE_HEADERS),
            ResponseBody(b"stream timeout", end=True),
            Wait(Until.RESPONSE_BODY),
        ),
        (c.response_echoed,),
    ),
)

CASES: tuple[Case, ...] = BODY_MODES + DESTINATIONS + REQUESTS + RESPONSES
