"""The table of their flags: what each is called, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["value", "bool"]


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of theirs. `ours` says what becomes of it, for people; `docs/migration.md` lists the same."""

    name: str
    kind: Kind
    ours: str
    #: We have a flag of the same name, so that its use alone does not mean a foreign command line.
    shared: bool = False


FLAGS: tuple[Flag, ...] = (
    Flag("pool-name", "value", "agent --pool; picker --pool NS/NAME=:PORT"),
    Flag("pool-namespace", "value", "agent --pool and --namespaces; default: $NAMESPACE, else default"),
    Flag("pool-group", "value", "agent --pool-group"),
    Flag("endpoint-selector", "value", "agent --pod-selector"),
    Flag("endpoint-target-ports", "value", "agent --target-ports"),
    Flag("grpc-port", "value", "picker --listen or --pool; default 9002"),
    Flag("grpc-health-port", "value", "picker --health-address; default 9003"),
    Flag("metrics-port", "value", "picker --metrics-address; default 9090"),
    Flag("config-file", "value", "picker --config-file", shared=True),
    Flag("config-text", "value", "picker --config-text", shared=True),
    Flag("secure-serving", "bool", "picker --secure-serving; default true", shared=True),
    Flag("cert-path", "value", "picker --cert-path", shared=True),
    Flag("enable-cert-reload", "bool", "always on"),
    Flag("tls-min-version", "value", "accepted when it is VersionTLS12; a higher one is refused"),
    Flag("tls-cipher-suites", "value", "not used: OpenSSL's default suites"),
    Flag("health-checking", "bool", "picker --health-checking", shared=True),
    Flag("drain-timeout", "value", "picker --drain-timeout", shared=True),
    Flag("grpc-max-recv-msg-size", "value", "picker --max-request-bytes"),
    Flag("grpc-max-send-msg-size", "value", "not needed: replies are cut into 62,000-byte pieces"),
    Flag("refresh-metrics-interval", "value", "agent --scrape-interval"),
    Flag("refresh-prometheus-metrics-interval", "value", "not needed: metrics are made when they are read"),
    Flag("metrics-staleness-threshold", "value", "not used: every value carries its age"),
    Flag("model-server-metrics-scheme", "value", "agent --model-server-scheme"),
    Flag("model-server-metrics-path", "value", "agent --model-server-path"),
    Flag("model-server-metrics-port", "value", "agent --model-server-port (0: the endpoint's)"),
    Flag(
        "model-server-metrics-https-insecure-skip-verify",
        "bool",
        "not used: metrics pages are read without verification",
    ),
    Flag("total-queued-requests-metric", "value", "not used: the engine is recognised by its page"),
    Flag("total-running-requests-metric", "value", "not used: the engine is recognised by its page"),
    Flag("kv-cache-usage-percentage-metric", "value", "not used: the engine is recognised by its page"),
    Flag("lora-info-metric", "value", "not used: the engine is recognised by its page"),
    Flag("cache-info-metric", "value", "not used: the engine is recognised by its page"),
    Flag("disable-endpoint-subset-filter", "bool", "accepted when false; a subset hint is always obeyed"),
    Flag("emit-endpoint-scores", "bool", "not used"),
    Flag("allow-experimental-plugins", "bool", "not needed"),
    Flag("ha-enable-leader-election", "bool", "not needed: every replica serves"),
    Flag("tracing", "bool", "not used"),
    Flag("enable-pprof", "bool", "not used"),
    Flag("enable-grpc-stream-metrics", "bool", "not needed: stream metrics are always on"),
    Flag("metrics-endpoint-auth", "bool", "not used: guard the metrics port with a NetworkPolicy"),
    Flag("metrics-client-ca-file", "value", "not used"),
    Flag("metrics-cert-dir", "value", "not used"),
    Flag("kubeconfig", "value", "agent --kubeconfig"),
    Flag("v", "value", "log level: 4 and more is debug"),
    Flag("zap-encoder", "value", "--log-format (json, or text for console)"),
    Flag("zap-log-level", "value", "--log-level"),
    Flag("zap-devel", "bool", "not used"),
    Flag("zap-stacktrace-level", "value", "not used"),
    Flag("zap-time-encoding", "value", "not used: RFC 3339"),
)
BY_NAME = {flag.name: flag for flag in FLAGS}
