"""What a worker asks of a front."""

from __future__ import annotations

from typing import Protocol

from zerohop_picker.fronts.calls import Services
from zerohop_picker.fronts.sockets import SocketAccess
from zerohop_picker.tls import Tls
from zerohop_process.address import Listen


class Front(Protocol):
    """Serves gRPC calls over some library. Everything runs on the current event loop."""

    @property
    def open_streams(self) -> int:
        """How many calls are open."""
        ...

    @property
    def connected(self) -> bool:
        """Whether a gateway may be connected, so that draining needs to tell it first."""
        ...

    async def listen(
        self, where: Listen, services: Services, *, access: SocketAccess, tls: Tls | None, reuse_port: bool
    ) -> Listen:
        """Serve `services` at `where`; return where exactly, with the port that port 0 became.

        Raises: ConfigError.
        """
        ...

    async def drain(self, timeout_s: float) -> int:
        """Take no new connections or streams; return how many calls were still open after `timeout_s`."""
        ...

    async def close(self) -> None:
        """End everything and give every path up."""
        ...
