"""Flags of theirs that we cannot follow to the letter: said in a note, or refused where it would be a false promise."""

from __future__ import annotations

from collections.abc import Callable

from zerohop_process.errors import ConfigError


def _minimum_tls(value: str) -> str | None:
    if value in ("", "VersionTLS10", "VersionTLS11", "VersionTLS12"):
        return None
    raise ConfigError(
        f"--tls-min-version: {value} cannot be promised: TLS 1.2 and newer are served; write VersionTLS12"
    )


def _subset(value: str) -> str | None:
    if value == "true":
        return "--disable-endpoint-subset-filter has no effect: a subset hint of the gateway is always obeyed"
    return None


def _auth(value: str) -> str | None:
    if value == "true":
        return "--metrics-endpoint-auth has no effect: the metrics port is open, guard it with a NetworkPolicy"
    return None


def _metric_name(default: str) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        if value in ("", default):
            return None
        return f"the metric name {value!r} is not used: describe the engine in a mapping instead (docs/engines.md)"

    return check


_CHECKS: dict[str, Callable[[str], str | None]] = {
    "tls-min-version": _minimum_tls,
    "disable-endpoint-subset-filter": _subset,
    "metrics-endpoint-auth": _auth,
    "total-queued-requests-metric": _metric_name("vllm:num_requests_waiting"),
    "total-running-requests-metric": _metric_name("vllm:num_requests_running"),
    "kv-cache-usage-percentage-metric": _metric_name("vllm:kv_cache_usage_perc"),
    "lora-info-metric": _metric_name("vllm:lora_requests_info"),
    "cache-info-metric": _metric_name("vllm:cache_config_info"),
}


def check_meaning(name: str, value: str) -> str | None:
    """A note where a flag changes meaning. Raises: ConfigError where it would promise what is not so."""
    check = _CHECKS.get(name)
    return check(value) if check is not None else None
