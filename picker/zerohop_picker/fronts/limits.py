"""What one peer may cost us, in one place."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB
SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what a peer may make a front hold or do. A breach ends that stream or that connection, never another's.

    Attributes:
        message_bytes: largest single gRPC message. A buffered body arrives as one message, so this is the request cap
            plus room for headers and metadata.
        held_bytes: body bytes held across all streams of a worker; past it, whoever stood still longest is refused.
        queued_bytes: reply bytes that one connection may always have queued. Past it, the connection is ended once
            what all connections have queued and hold exceeds `held_bytes`.
        concurrent_streams: per connection. Envoy sends streams before it has read our settings and a refused one is a
            failed request, so this is a ceiling against abuse and not a way to shape load.
        connections: open connections per listener.
        header_list_bytes: decoded size of one header block.
        header_count: fields in one header block.
        control_burst: PING and SETTINGS frames a connection may send at once.
        control_rate: PING and SETTINGS frames per second that a connection may keep up.
        idle_stream_ns: how long a stream whose request is not complete may stand still.
        handshake_ns: how long a new connection may take to its first stream (and TLS to its end).
        ping_ns: silence after which we send a PING; a second such silence closes the connection.
    """

    message_bytes: int = 16 * MIB + 256 * KIB
    held_bytes: int = 256 * MIB
    queued_bytes: int = 64 * MIB
    concurrent_streams: int = 32_768
    connections: int = 1_024
    header_list_bytes: int = 64 * KIB
    header_count: int = 256
    control_burst: int = 1_000
    control_rate: int = 100
    idle_stream_ns: int = 60 * SECOND_NS
    handshake_ns: int = 10 * SECOND_NS
    ping_ns: int = 30 * SECOND_NS

    @classmethod
    def for_requests(cls, max_request_bytes: int) -> Limits:
        """Return limits whose message and held bounds fit requests of `max_request_bytes`."""
        return cls(
            message_bytes=max_request_bytes + 256 * KIB,
            held_bytes=max(256 * MIB, 4 * max_request_bytes),
            queued_bytes=max(64 * MIB, 4 * max_request_bytes),
        )
