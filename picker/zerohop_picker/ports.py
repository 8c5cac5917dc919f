"""The health and metrics ports of a picker, which a single worker serves itself and a supervisor for all of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerohop_picker.config import PickerConfig
from zerohop_picker.fronts.health_calls import health_services
from zerohop_picker.fronts.limits import Limits
from zerohop_picker.health import Health
from zerohop_picker.metrics import Metrics, render
from zerohop_picker.metrics_http import TEXT, MetricsServer
from zerohop_process.address import Listen


class Ports:
    """The health and metrics ports of a picker, whoever it consists of."""

    def __init__(self, config: PickerConfig, health: Health) -> None:
        self._config = config
        self._health = health
        self._servers: list[Any] = []

    async def listen(self, pages: Any) -> Mapping[str, object]:
        """Serve both where configured; `pages` is a coroutine function that returns metrics pages by worker.

        Returns the addresses, for the log. Raises: ConfigError.
        """
        from zerohop_picker.fronts.native import NativeFront

        addresses: dict[str, object] = {}
        if self._config.health_address is not None:
            front = NativeFront(Limits(connections=256, concurrent_streams=256), Metrics())
            self._servers.append(front)
            addresses["health"] = await front.listen(
                Listen(address=self._config.health_address), health_services(self._health),
                access=self._config.access, flag="--health-address",
            )  # fmt: skip
        if self._config.metrics_address is not None:

            async def metrics() -> tuple[str, bytes]:
                return TEXT, render(await pages(), field_names=self._config.field_metric_names)

            server = MetricsServer({"/metrics": metrics})
            self._servers.append(server)
            addresses["metrics"] = await server.listen(self._config.metrics_address)
        return addresses

    async def close(self) -> None:
        """Stop serving them."""
        for server in self._servers:
            await server.close()
