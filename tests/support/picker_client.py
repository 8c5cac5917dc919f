"""What a stock gRPC client hears from a running picker."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

import grpc

from zerohop_picker._pb import extproc_pb2, health_pb2


def health(port: int, service: str) -> int:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            return int(check(health_pb2.HealthCheckRequest(service=service), timeout=2).status)
        except grpc.RpcError:
            return -1


def picked(port: int, *, tls: bool = False, metadata: Sequence[tuple[str, str | bytes]] = ()) -> str:
    """The destination for one request without a body."""
    if tls:
        certificate = ssl.get_server_certificate(("127.0.0.1", port))
        channel = grpc.secure_channel(
            f"127.0.0.1:{port}",
            grpc.ssl_channel_credentials(certificate.encode()),
            [("grpc.ssl_target_name_override", "localhost")],
        )
    else:
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    with channel:
        process = channel.stream_stream(
            "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
            request_serializer=extproc_pb2.ProcessingRequest.SerializeToString,
            response_deserializer=extproc_pb2.ProcessingResponse.FromString,
        )
        message = extproc_pb2.ProcessingRequest()
        message.request_headers.end_of_stream = True
        for name, value in ((":method", b"GET"), (":path", b"/v1/models")):
            message.request_headers.headers.headers.add(key=name, raw_value=value)
        answer = next(iter(process(iter([message]), timeout=5, metadata=tuple(metadata))))
        for option in answer.request_headers.response.header_mutation.set_headers:
            if option.header.key == "x-gateway-destination-endpoint":
                return str(option.header.raw_value.decode())
        return f"no destination: {answer}"
