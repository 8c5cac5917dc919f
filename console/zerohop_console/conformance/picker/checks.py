"""What can be asked of an exchange. Each returns a sentence that says what is wrong, or None."""

from __future__ import annotations

import json

from zerohop_console.conformance.picker.exchange import Seen
from zerohop_console.conformance.picker.script import Check, Pool
from zerohop_picker._pb import extproc_pb2 as pb
from zerohop_process.address import Address
from zerohop_process.errors import ConfigError

DESTINATION = "x-gateway-destination-endpoint"
_OVERWRITES = (pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD, pb.HeaderValueOption.OVERWRITE_IF_EXISTS)
#: What Envoys have been seen to cap one streamed chunk at.
CHUNK_LIMIT_BYTES = 64 * 1024


def picked(seen: Seen, pool: Pool) -> str | None:
    """A destination came, the same in header and metadata, an ordered list of members of the pool."""
    return _destination_among(seen, {str(member) for member in pool})


def picked_among(*texts: str) -> Check:
    """As `picked`, and every entry is one of these."""

    def check(seen: Seen, pool: Pool) -> str | None:
        return _destination_among(seen, {text.format(*pool) for text in texts})

    return check


def picked_on_host(text: str) -> Check:
    """As `picked`, and every entry is on this IP."""

    def check(seen: Seen, pool: Pool) -> str | None:
        host = text.format(*pool)
        return _destination_among(seen, {str(member) for member in pool if member.host == host})

    return check


def _destination_among(seen: Seen, allowed: set[str]) -> str | None:
    if seen.refusal is not None:
        return f"refused with {seen.refusal.status.code}: {seen.refusal.body[:200].decode('utf-8', 'replace')}"
    carriers = [reply for reply in seen.replies if _set_headers(reply).get(DESTINATION)]
    if not carriers:
        return f"no reply sets the header {DESTINATION}"
    if len(carriers) > 1:
        return f"{len(carriers)} replies set the header {DESTINATION}"
    value = _text(_set_headers(carriers[0])[DESTINATION])
    spaces = [reply.dynamic_metadata.fields for reply in seen.replies if "envoy.lb" in reply.dynamic_metadata.fields]
    if not spaces:
        return "no reply carries dynamic metadata envoy.lb"
    stated = spaces[0]["envoy.lb"].struct_value.fields[DESTINATION].string_value
    if stated != value:
        return f"the header says {value!r} and the metadata {stated!r}"
    entries = [entry.strip() for entry in value.split(",")]
    if len(set(entries)) != len(entries):
        return f"an endpoint is named twice in {value!r}"
    wrong = [entry for entry in entries if _normal(entry) not in allowed]
    return f"{wrong[0]!r} is none of {', '.join(sorted(allowed))}" if wrong else None


def _normal(entry: str) -> str:
    try:
        return str(Address.parse(entry, "destination"))
    except ConfigError:
        return entry


def destination_overwrites(seen: Seen, pool: Pool) -> str | None:
    """A destination that a client sent does not survive beside or before the picker's."""
    del pool
    for reply in seen.replies:
        for option in _mutation(reply).set_headers:
            if option.header.key.lower() == DESTINATION and option.append_action not in _OVERWRITES:
                return "the destination is appended to what the client sent, not put in its place"
    return None


def fallbacks_named(seen: Seen, pool: Pool) -> str | None:
    """More than one endpoint is named, so that the gateway can retry."""
    for reply in seen.replies:
        value = _set_headers(reply).get(DESTINATION)
        if value is not None:
            return None if "," in _text(value) or len(pool) < 2 else "only one endpoint is named"
    return "no destination"


def raw_values_only(seen: Seen, pool: Pool) -> str | None:
    """Header values are written to raw_value and not to value."""
    del pool
    for reply in seen.replies:
        for option in _mutation(reply).set_headers:
            if option.header.value:
                return f"{option.header.key} is written to `value`, which Envoy does not read"
    return None


def request_id_set(seen: Seen, pool: Pool) -> str | None:
    """A request that came without an id got one."""
    del pool
    if any(_set_headers(reply).get("x-request-id") for reply in seen.replies):
        return None
    return "no reply sets x-request-id"


def body_identical(seen: Seen, pool: Pool) -> str | None:
    """The body that the gateway forwards is byte for byte the body that it got, and ends."""
    del pool
    chunks = [reply.request_body.response.body_mutation for reply in seen.of("request_body")]
    if any(chunk.WhichOneof("mutation") != "streamed_response" for chunk in chunks):
        return "a body answer is not a streamed_response, which Envoy takes for spurious"
    body = b"".join(chunk.streamed_response.body for chunk in chunks)
    if body != seen.request:
        return f"{len(body)} bytes went on where {len(seen.request)} came, or other ones"
    ends = [chunk.streamed_response.end_of_stream for chunk in chunks]
    if True in ends[:-1]:
        return "end_of_stream stands before the last chunk"
    if not seen.of("request_trailers") and not (ends and ends[-1]):
        return "the last chunk has no end_of_stream"
    return None


def headers_first(seen: Seen, pool: Pool) -> str | None:
    """Replies of each direction come in the order headers, body, trailers."""
    del pool
    for direction in ("request", "response"):
        kinds = [kind for reply in seen.replies if (kind := reply.WhichOneof("response") or "").startswith(direction)]
        order = [f"{direction}_headers", f"{direction}_body", f"{direction}_trailers"]
        ranks = [order.index(kind) for kind in kinds]
        if ranks != sorted(ranks) or kinds.count(order[0]) > 1:
            return f"replies came in the order {', '.join(kinds)}"
    return None


def chunks_small(seen: Seen, pool: Pool) -> str | None:
    """No chunk is longer than what Envoy takes."""
    del pool
    sizes = [
        len(reply.request_body.response.body_mutation.streamed_response.body)
        + len(reply.response_body.response.body_mutation.streamed_response.body)
        for reply in seen.replies
    ]
    longest = max(sizes, default=0)
    return f"a chunk of {longest} bytes" if longest > CHUNK_LIMIT_BYTES else None


def body_untouched(seen: Seen, pool: Pool) -> str | None:
    """Where the gateway keeps the body, no body mutation changes it."""
    del pool
    for reply in seen.of("request_body"):
        mutation = reply.request_body.response.body_mutation
        kind = mutation.WhichOneof("mutation")
        if kind is not None and (kind != "body" or mutation.body != seen.request):
            return f"the body is replaced ({kind}) though nothing was to be changed"
    return None


def refused(*statuses: int) -> Check:
    """An immediate response with one of these statuses, and no destination."""

    def check(seen: Seen, pool: Pool) -> str | None:
        del pool
        if seen.refusal is None:
            how = f"the stream ended with gRPC status {seen.ended.status}" if seen.ended else "it went on"
            return f"no immediate response: {how}"
        code = seen.refusal.status.code
        if code not in statuses:
            return f"status {code} where {' or '.join(map(str, statuses))} is due"
        if any(DESTINATION in _set_headers(reply) for reply in seen.replies):
            return "a destination was set, too"
        return None

    return check


def error_shape(seen: Seen, pool: Pool) -> str | None:
    """The refusal's body is JSON in OpenAI's error shape, and says so."""
    del pool
    if seen.refusal is None:
        return "no immediate response"
    try:
        message = json.loads(seen.refusal.body)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        return 'the body is not {"error": {"message": ...}}'
    names = {option.header.key.lower(): option.header.raw_value for option in seen.refusal.headers.set_headers}
    if not names.get("content-type", b"").startswith(b"application/json"):
        return "content-type is not application/json"
    return None if message else "the message is empty"


def dropped_reason(reason: str) -> Check:
    """The refusal says why in `x-llm-d-request-dropped-reason`."""

    def check(seen: Seen, pool: Pool) -> str | None:
        del pool
        if seen.refusal is None:
            return "no immediate response"
        names = {option.header.key: _text(option) for option in seen.refusal.headers.set_headers}
        stated = names.get("x-llm-d-request-dropped-reason")
        return None if stated == reason else f"x-llm-d-request-dropped-reason is {stated!r}, not {reason!r}"

    return check


def body_not_quoted(text: bytes) -> Check:
    """The error does not quote the client's body."""

    def check(seen: Seen, pool: Pool) -> str | None:
        del pool
        return "the error quotes the request body" if seen.refusal is not None and text in seen.refusal.body else None

    return check


def response_echoed(seen: Seen, pool: Pool) -> str | None:
    """Every response chunk came back unchanged; or the picker left after the request, which is as good."""
    del pool
    if seen.left:
        return None
    chunks = [reply.response_body.response.body_mutation for reply in seen.of("response_body")]
    if any(chunk.WhichOneof("mutation") != "streamed_response" for chunk in chunks):
        return "a body answer is not a streamed_response, which Envoy takes for spurious"
    if b"".join(chunk.streamed_response.body for chunk in chunks) != b"".join(seen.response):
        return "the response went on changed"
    return None


def nothing_answered(seen: Seen, pool: Pool) -> str | None:
    """No reply came at all."""
    del pool
    return f"{len(seen.replies)} replies came" if seen.replies else None


def not_refused(seen: Seen, pool: Pool) -> str | None:
    """No immediate response."""
    del pool
    return None if seen.refusal is None else f"refused with {seen.refusal.status.code}"


def response_header(name: str, text: str) -> Check:
    """A response header is set to this."""

    def check(seen: Seen, pool: Pool) -> str | None:
        for reply in seen.of("response_headers"):
            value = _set_headers(reply).get(name)
            if value is not None:
                expected = text.format(*pool)
                return None if _text(value) == expected else f"{name} is {_text(value)!r}, not {expected!r}"
        return f"{name} is not set on the response"

    return check


def _mutation(reply: pb.ProcessingResponse) -> pb.HeaderMutation:
    kind = reply.WhichOneof("response")
    if kind in ("request_headers", "response_headers", "request_body", "response_body"):
        mutation: pb.HeaderMutation = getattr(reply, kind).response.header_mutation
        return mutation
    return pb.HeaderMutation()


def _set_headers(reply: pb.ProcessingResponse) -> dict[str, pb.HeaderValueOption]:
    return {option.header.key.lower(): option for option in _mutation(reply).set_headers}


def _text(option: pb.HeaderValueOption) -> str:
    return option.header.raw_value.decode("utf-8", "replace") or option.header.value
