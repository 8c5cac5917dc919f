"""Every plugin type a configuration can name, and what to say about those that we do not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from zerohop_picker.scheduling import filters, pickers, profiles, saturation, scorers
from zerohop_picker.scheduling.plugin import Parameter, PluginType
from zerohop_picker.scheduling.scorers.cache import PREFIX_PARAMETERS
from zerohop_process.strict import Node, boolean, number, text, within


def _nothing(**_parameters: object) -> None:
    """Build nothing: the part that this type stands for is always there."""


_BY_AGENT: Final = "it is set at the agent, for each endpoint (docs/endpoints-file.md, docs/engines.md): remove it here"
_ESTIMATED: Final = "prompts are estimated at four bytes a token, and nothing about it can be set: remove it"


def _just(read: Callable[[Node], Any], done: Any) -> Callable[[Node], Any]:
    """Return a reader that takes nothing but what is done anyway."""

    def only(node: Node) -> Any:
        value = read(node)
        if value != done:
            raise node.error(f"{value!r} is not what is read by default ({done!r}); {_BY_AGENT}")
        return value

    return only


#: Types that stand for something we always do; they are accepted so that existing configurations load.
_BUILT_IN = (
    PluginType(
        "approx-prefix-cache-producer", "producer", _nothing, parameters=PREFIX_PARAMETERS,
        note="sets how prompts are cut into blocks",
    ),
    PluginType(
        "inflight-load-producer", "producer", _nothing, note="in-flight counts are always kept",
        parameters=(
            Parameter("addEstimatedOutputTokens", boolean, False, "count estimated output tokens, too"),
            Parameter("outputRatio", within(number, 0, 1000), 1.5, "output tokens per prompt token"),
        ),
    ),
    PluginType(
        "token-producer", "producer", _nothing, note="prompts are estimated at four bytes a token", elsewhere=_ESTIMATED
    ),
    PluginType("session-id-producer", "producer", _nothing, note="name the header in sessionIdConfig.sources"),
    *(
        PluginType(name, "source", _nothing, note="the agent reads the model servers", elsewhere=_BY_AGENT)
        for name in ("core-metrics-extractor", "models-data-source", "models-data-extractor")
    ),
    PluginType(
        "metrics-data-source", "source", _nothing, note="the agent reads the model servers", elsewhere=_BY_AGENT,
        parameters=(
            Parameter("scheme", _just(text, "http"), "http", "as the agent does; others are set there"),
            Parameter("path", _just(text, "/metrics"), "/metrics", "as the agent does; others are set there"),
            Parameter("insecureSkipVerify", boolean, True, "not used with http"),
        ),
    ),
    PluginType("dcgm-data-source", "source", _nothing, note="the agent reads the GPUs itself", elsewhere=_BY_AGENT),
    PluginType("dcgm-extractor", "source", _nothing, note="the agent reads the GPUs itself"),
    PluginType("k8s-notification-source", "source", _nothing, note="the agent follows the pods"),
    PluginType("endpoint-notification-source", "source", _nothing, note="the agent follows the endpoints"),
    *(
        PluginType(f"{name}-parser", "parser", _nothing, note="all parsers are always on")
        for name in ("openai", "anthropic", "vllmhttp", "sglanghttp", "vllmgrpc", "passthrough")
    ),
    PluginType(
        "disagg-headers-handler", "producer", _nothing, note="deprecated: disagg-profile-handler sets the headers",
        parameters=(Parameter("prefillProfile", text, "prefill"), Parameter("encodeProfile", text, "encode")),
    ),
    PluginType(
        "prefill-header-handler", "producer", _nothing, note="deprecated: disagg-profile-handler sets the headers",
        parameters=(Parameter("prefillProfile", text, "prefill"),),
    ),
    PluginType("destination-endpoint-served-verifier", "producer", _nothing, note="for conformance tests"),
)  # fmt: skip

TYPES: Final[Mapping[str, PluginType]] = {
    entry.type: entry
    for entry in (
        *filters.TYPES, *scorers.TYPES, *pickers.TYPES, *profiles.TYPES, *saturation.TYPES, *_BUILT_IN,
    )
}  # fmt: skip

_FLOW = "requests are shed, not queued: remove it, and set saturationDetector to say when"
_LATENCY = "use least-loaded-scorer or token-load-scorer"
_TOPOLOGY = "use label-selector-filter, or header-label-affinity-scorer with a topology label"

#: Types of the field that we do not have, each with what to use instead.
REFUSED: Final[Mapping[str, str]] = {
    "decision-tree-filter": "list its filters in the profile, in order; a filter that would leave nothing gives way",
    "least-queue-filter": "use queue-scorer",
    "least-kv-cache-filter": "use kv-cache-utilization-scorer",
    "kvcache-aware-scorer": "use prefix-cache-scorer: the prefix directory is shared by all workers",
    "prefix-aware-scorer": "use prefix-cache-scorer",
    "latency-scorer": _LATENCY,
    "predicted-latency-producer": _LATENCY,
    "latency-slo-admitter": "use saturationDetector: sheddable requests are refused while the pool is saturated",
    "probabilistic-admitter": "use saturationDetector: sheddable requests are refused while the pool is saturated",
    "slo-headroom-tier-filter": "use utilization-filter",
    "precise-prefix-cache-scorer": "use prefix-cache-scorer: the prefix directory is shared by all workers",
    "precise-prefix-cache-producer": "use approx-prefix-cache-producer: the directory is shared by all workers",
    "burst-prefix-cache-producer": "remove it: entries are written at dispatch, so a burst finds its prefix at once",
    "mm-embeddings-cache-scorer": "use prefix-cache-scorer: image and audio parts enter the prefix as hashes",
    "mm-embeddings-cache-producer": "use approx-prefix-cache-producer: image and audio parts enter as hashes",
    "p2p-source-producer": "remove it: caches are not copied between endpoints",
    "topology-affinity-scorer": _TOPOLOGY,
    "topology-affinity-filter": _TOPOLOGY,
    "topology-extractor": _TOPOLOGY,
    "multicluster-queue-scorer": "use queue-scorer on the endpoints themselves",
    "multicluster-kv-cache-utilization-scorer": "use kv-cache-utilization-scorer on the endpoints themselves",
    "multicluster-prefix-cache-scorer": "use prefix-cache-scorer on the endpoints themselves",
    "multicluster-session-affinity-filter": "use session-affinity-filter",
    "multicluster-approx-prefix-cache-producer": "use approx-prefix-cache-producer",
    "multicluster-file-discovery": "give the endpoints to the agent (--endpoints-file)",
    "file-discovery": "give the endpoints to the agent (--endpoints-file)",
    "disaggregatedset-rollout-screener": "use label-selector-filter",
    "vertexai-parser": "remove it: unknown paths are passed through and routed by load",
    "agent-identity": "use session-affinity-scorer with a header in sessionIdConfig.sources",
    "request-attribute-reporter": "remove it",
    "global-strict-fairness-policy": _FLOW,
    "round-robin-fairness-policy": _FLOW,
    "program-aware-fairness": _FLOW,
    "fcfs-ordering-policy": _FLOW,
    "edf-ordering-policy": _FLOW,
    "slo-deadline-ordering-policy": _FLOW,
    "static-usage-limit-policy": _FLOW,
    "priority-holdback-policy": _FLOW,
    "soft-reflective-ceiling-policy": _FLOW,
    "sheddable-eviction-filter": _FLOW,
    "priority-then-time-eviction-order-policy": _FLOW,
    "local-syncer": "remove it: workers share their state in shared memory",
}
