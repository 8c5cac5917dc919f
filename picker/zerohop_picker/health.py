"""What each health question means, and its answer. One table, the same for every front and port.

* `liveness` is SERVING while the process answers.
* ``, `readiness`, `inference-extension` and `envoy.service.ext_proc.v3.ExternalProcessor` are SERVING when there is
  something to choose from and we are not draining.
* `pool/NAMESPACE/NAME` is the same for one pool, and known for the pools this picker serves.

A snapshot that stands still (the agent is gone) does not make a picker unready: it goes on over the last known
endpoints and says so in metrics. A snapshot that never was does. Any other service is unknown, which the health
protocol answers by NOT_FOUND (Check) or SERVICE_UNKNOWN (Watch).

Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping

LIVENESS = "liveness"
READINESS_SERVICES = ("", "readiness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor")
POOL_PREFIX = "pool/"

CHECK_PATH = b"/grpc.health.v1.Health/Check"
LIST_PATH = b"/grpc.health.v1.Health/List"
WATCH_PATH = b"/grpc.health.v1.Health/Watch"


class Status(enum.IntEnum):
    """`grpc.health.v1.HealthCheckResponse.ServingStatus`."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class Health:
    """The health of one process, or of all workers together. Tells watchers of every change."""

    def __init__(self) -> None:
        self.ready = False
        self.draining = False
        self._pools: dict[str, bool] = {}
        self._watchers: set[Callable[[], None]] = set()

    def update(self, *, ready: bool, pools: Mapping[str, bool], draining: bool | None = None) -> None:
        """Take the state as it is now. `pools` says for each pool (`namespace/name`) whether it can serve."""
        draining = self.draining if draining is None else draining
        if (ready, pools, draining) == (self.ready, self._pools, self.draining):
            return
        self.ready, self._pools, self.draining = ready, dict(pools), draining
        self._tell()

    def drain(self) -> None:
        """Stop being ready for good."""
        if not self.draining:
            self.draining = True
            self._tell()

    @property
    def pools(self) -> Mapping[str, bool]:
        """Whether each pool can serve."""
        return self._pools

    def check(self, service: str) -> Status:
        """Return the status of `service`; SERVICE_UNKNOWN for one that is none of ours."""
        if service == LIVENESS:
            return Status.SERVING
        if service in READINESS_SERVICES:
            return _serving(self.ready and not self.draining)
        if service.startswith(POOL_PREFIX):
            pool = self._pools.get(service.removeprefix(POOL_PREFIX))
            if pool is not None:
                return _serving(pool and not self.draining)
        return Status.SERVICE_UNKNOWN

    def services(self) -> Iterable[str]:
        """Return every service that is known."""
        return (*READINESS_SERVICES, LIVENESS, *(f"{POOL_PREFIX}{name}" for name in self._pools))

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after every change until the returned function is called."""
        self._watchers.add(changed)
        return lambda: self._watchers.discard(changed)

    def _tell(self) -> None:
        for changed in tuple(self._watchers):
            changed()


def _serving(yes: bool) -> Status:
    return Status.SERVING if yes else Status.NOT_SERVING


class NotProtobuf(Exception):
    """The bytes are no HealthCheckRequest."""


def service_of(request: bytes) -> str:
    """Return the service name in a serialized HealthCheckRequest. Raises: NotProtobuf."""
    service, at = b"", 0
    try:
        while at < len(request):
            tag, at = _varint(request, at)
            kind = tag & 7
            if kind == 2:
                length, at = _varint(request, at)
                if at + length > len(request):
                    raise NotProtobuf
                if tag == 0x0A:
                    service = request[at : at + length]
                at += length
            elif kind == 0:
                _, at = _varint(request, at)
            elif kind in (1, 5):
                at += 8 if kind == 1 else 4
            else:
                raise NotProtobuf
        return service.decode()
    except (IndexError, UnicodeDecodeError):
        raise NotProtobuf from None


def response(status: Status) -> bytes:
    """Return a serialized HealthCheckResponse."""
    return b"\x08" + bytes([status]) if status else b""


def list_response(statuses: Mapping[str, Status]) -> bytes:
    """Return a serialized HealthListResponse."""
    out = bytearray()
    for name, status in statuses.items():
        value = response(status)
        entry = b"\x0a" + _length(name.encode()) + b"\x12" + _length(value)
        out += b"\x0a" + _length(entry)
    return bytes(out)


def _length(data: bytes) -> bytes:
    out, number = bytearray(), len(data)
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out) + data


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise NotProtobuf
