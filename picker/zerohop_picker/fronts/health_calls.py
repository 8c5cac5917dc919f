"""The gRPC health service as calls without I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zerohop_picker import health
from zerohop_picker.fronts import calls
from zerohop_picker.fronts.calls import Call, Metadata, Push
from zerohop_picker.health import Health, Status
from zerohop_picker.protocol.errors import StreamFault


class HealthCall:
    """What Check, List and Watch have in common: one request, and nothing held."""

    awaiting_request = True
    held_bytes = 0
    wake_ns = 0

    def __init__(self, state: Health) -> None:
        self.finished = False
        self._state = state

    def wake(self, now_ns: int) -> Sequence[bytes]:  # noqa: ARG002
        """Never asked for."""
        return ()

    def receive(self, message: bytes, now_ns: int) -> Sequence[bytes]:  # noqa: ARG002
        """Answer the one request."""
        try:
            service = health.service_of(message)
        except health.NotProtobuf:
            raise StreamFault("not a HealthCheckRequest", calls.INTERNAL) from None
        return self._answer(service)

    def half_close(self, now_ns: int) -> Sequence[bytes]:  # noqa: ARG002
        """Note that nothing more comes; a Watch goes on."""
        if self.awaiting_request:
            raise StreamFault("the request is missing", calls.INTERNAL)
        return ()

    def refuse(self, status: int, reason: str, message: str) -> Sequence[bytes]:  # noqa: ARG002
        """End the call for not asking anything."""
        raise StreamFault(message, calls.DEADLINE_EXCEEDED)

    def close(self) -> None:
        """Hold nothing."""

    def _answer(self, service: str) -> Sequence[bytes]:
        self.awaiting_request = False
        self.finished = True
        status = self._state.check(service)
        if status is Status.SERVICE_UNKNOWN:
            raise StreamFault(f"unknown service {service}", calls.NOT_FOUND)
        return (health.response(status),)


class ListCall(HealthCall):
    """Answers with every known service."""

    def _answer(self, service: str) -> Sequence[bytes]:  # noqa: ARG002
        self.awaiting_request = False
        self.finished = True
        return (health.list_response({name: self._state.check(name) for name in self._state.services()}),)


class WatchCall(HealthCall):
    """Answers at once and again after each change, until the peer ends it."""

    def __init__(self, state: Health, push: Push) -> None:
        super().__init__(state)
        self._push = push
        self._service = ""
        self._told: Status | None = None
        self._stop: Callable[[], None] | None = None

    def close(self) -> None:
        """Stop watching."""
        if self._stop is not None:
            self._stop()

    def _answer(self, service: str) -> Sequence[bytes]:
        if not self.awaiting_request:
            raise StreamFault("a second request on one Watch", calls.INTERNAL)
        self.awaiting_request = False
        self._service = service
        self._stop = self._state.watch(self._changed)
        self._told = self._state.check(service)
        return (health.response(self._told),)

    def _changed(self) -> None:
        status = self._state.check(self._service)
        if status is not self._told:
            self._told = status
            self._push((health.response(status),))


def health_services(state: Health) -> calls.Services:
    """Return the three methods of `grpc.health.v1.Health` over `state`."""

    def check(metadata: Metadata, push: Push) -> Call:  # noqa: ARG001
        return HealthCall(state)

    def list_all(metadata: Metadata, push: Push) -> Call:  # noqa: ARG001
        return ListCall(state)

    def watch(metadata: Metadata, push: Push) -> Call:  # noqa: ARG001
        return WatchCall(state, push)

    return {health.CHECK_PATH: check, health.LIST_PATH: list_all, health.WATCH_PATH: watch}
