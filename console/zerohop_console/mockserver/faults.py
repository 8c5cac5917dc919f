"""How a mock server can be made to fail while it runs: its API, its health, and its metrics page, each apart."""

from __future__ import annotations

from typing import Any

from zerohop_console.mockserver.http import Connection, HttpRequest

#: none; answer with a status; never answer; reset the connection; close it without an answer; answer what is no HTTP
API_FAULTS = ("none", "status", "hang", "reset", "close", "garbage")
#: the API's faults, then pages that are no metrics page
PAGE_FAULTS = (*API_FAULTS, "empty", "html", "json", "cut", "huge", "nan", "redirect", "nothing_of_ours")

_HUGE_BYTES = 8 * 1024 * 1024
_GAUGES = (b"num_requests_running", b"num_requests_waiting", b"kv_cache_usage_perc")
_PAGES: dict[str, tuple[str, bytes]] = {
    "empty": ("text/plain", b""),
    "html": ("text/html", b"<!doctype html><html><body>502 Bad Gateway</body></html>"),
    "json": ("application/json", b'{"vllm:num_requests_running": 3}'),
    "cut": ("text/plain", b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0",mode'),
    "nan": ("text/plain", b"".join(b'vllm:%b{engine="0",model_name="m"} NaN\n' % name for name in _GAUGES)),
    "nothing_of_ours": ("text/plain", b"# TYPE up gauge\nup 1.0\n"),
}


class Faults:
    """What is wrong now; nothing at first."""

    def __init__(self) -> None:
        self.ready = True
        self.api = "none"
        self.page = "none"
        self.status = 503

    def as_dict(self) -> dict[str, Any]:
        """Return the state as `/admin` shows it."""
        return {"ready": self.ready, "api_fault": self.api, "page_fault": self.page, "status": self.status}

    def change(self, change: dict[str, Any]) -> str | None:
        """Apply an `/admin` body; return what is wrong with it, if anything, and then change nothing."""
        for name, value in change.items():
            choices = {"api_fault": API_FAULTS, "page_fault": PAGE_FAULTS}.get(name)
            if choices is not None:
                if value not in choices:
                    return f"{name} must be one of {', '.join(choices)}"
            elif name == "ready":
                if not isinstance(value, bool):
                    return "ready must be true or false"
            elif name == "status":
                if not isinstance(value, int) or not 200 <= value <= 599:
                    return "status must be an HTTP status"
            else:
                return f"unknown field {name!r}"
        self.ready = change.get("ready", self.ready)
        self.api = change.get("api_fault", self.api)
        self.page = change.get("page_fault", self.page)
        self.status = change.get("status", self.status)
        return None

    def answer(self, request: HttpRequest, connection: Connection) -> bool:
        """Answer wrongly if a fault applies to this request; return whether it did."""
        fault = self.page if request.path == "/metrics" else self.api
        if fault == "none" or request.path in ("/health", "/ping"):
            return False
        if fault == "status":
            message = b'{"error":{"message":"injected fault","type":"InternalServerError","param":null,"code":500}}'
            connection.respond(self.status, "application/json", message)
        elif fault == "reset":
            connection.abort()
        elif fault == "close":
            connection.send_raw(b"", close=True)
        elif fault == "garbage":
            connection.send_raw(b"\x00\x01 this is no HTTP\r\n\r\n", close=True)
        elif fault == "redirect":
            connection.respond(302, "text/plain", b"", {"location": "http://127.0.0.1:1/metrics"})
        elif fault == "huge":
            line = b'vllm:num_requests_running{engine="0",model_name="m"} 1.0\n'
            connection.respond(200, "text/plain", line * (_HUGE_BYTES // len(line) + 1))
        elif fault in _PAGES:
            content_type, body = _PAGES[fault]
            connection.respond(200, content_type, body)
        # "hang": the client waits for ever
        return True
