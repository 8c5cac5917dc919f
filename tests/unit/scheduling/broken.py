"""Twenty and more broken configurations, each with what its error has to say."""

# ruff: noqa: E501 - a table reads best with one case a line
from __future__ import annotations

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
PROFILE = "schedulingProfiles:\n- name: default\n  plugins:\n  - pluginRef: queue-scorer\n"

#: name: (text, words that the error must hold)
BROKEN: dict[str, tuple[str, tuple[str, ...]]] = {
    "not YAML": (HEAD + "plugins: [", ("not valid YAML",)),
    "a list": ("- type: queue-scorer\n", ("expected a mapping",)),
    "two documents": (HEAD + "---\n" + HEAD, ("second document",)),
    "no apiVersion": ("kind: EndpointPickerConfig\n", ("'apiVersion' is missing",)),
    "unknown version": ("apiVersion: llm-d.ai/v2\nkind: EndpointPickerConfig\n", ("c.yaml:1", "'llm-d.ai/v1alpha1'")),
    "another kind": ("apiVersion: llm-d.ai/v1alpha1\nkind: ConfigMap\n", ("'ConfigMap'", "EndpointPickerConfig")),
    "the map around it": (
        "apiVersion: v1\nkind: ConfigMap\ndata:\n  c.yaml: text\n", ("c.yaml:2", "'ConfigMap'", "inside its data"),
    ),
    "misspelt field": (HEAD + "plugin: []\n", ("c.yaml:3", "unknown field 'plugin'", "did you mean 'plugins'")),
    "misspelt type": (HEAD + "plugins:\n- type: queue-scorrer\n", ("c.yaml:4", "did you mean 'queue-scorer'")),
    "misspelt parameter": (
        HEAD + "plugins:\n- type: load-aware-scorer\n  parameters:\n    treshold: 5\n",
        ("c.yaml:6", "unknown field 'treshold'", "did you mean 'threshold'"),
    ),
    "wrong type of parameter": (
        HEAD + "plugins:\n- type: load-aware-scorer\n  parameters: {threshold: many}\n", ("threshold", "whole number"),
    ),
    "parameter out of range": (
        HEAD + "plugins:\n- type: prefix-cache-affinity-filter\n  parameters: {affinityThreshold: 80}\n",
        ("affinityThreshold", "between 0 and 1"),
    ),
    "required parameter missing": (
        HEAD + "plugins:\n- type: header-label-affinity-scorer\n  parameters: {headerName: x}\n", ("'labelKey' is missing",),
    ),
    "parameter of a plugin without any": (
        HEAD + "plugins:\n- type: queue-scorer\n  parameters: {weight: 2}\n", ("unknown field 'weight'",),
    ),
    "same name twice": (HEAD + "plugins:\n- type: queue-scorer\n- type: queue-scorer\n", ("named 'queue-scorer'", "another name")),
    "reference to nobody": (
        HEAD + "plugins:\n- type: queue-scorer\n" + PROFILE.replace("queue-scorer", "que-scorer"),
        ("no plugin is named 'que-scorer'", "did you mean 'queue-scorer'"),
    ),
    "negative weight": (HEAD + "plugins:\n- type: queue-scorer\n" + PROFILE + "    weight: -1\n", ("weight", "-1", "between")),
    "two pickers": (
        HEAD + "plugins:\n- type: queue-scorer\n- type: max-score-picker\n- type: random-picker\n" + PROFILE
        + "  - pluginRef: max-score-picker\n  - pluginRef: random-picker\n",
        ("two pickers", "keep one"),
    ),
    "two profile handlers": (
        HEAD + "plugins:\n- type: single-profile-handler\n- type: header-profile-handler\n", ("two profile handlers", "keep one"),
    ),
    "handler in a profile": (
        HEAD + "plugins:\n- type: single-profile-handler\n- type: queue-scorer\n" + PROFILE + "  - pluginRef: single-profile-handler\n",
        ("is a profile-handler", "a profile takes filters"),
    ),
    "two profiles, single handler": (
        HEAD + "plugins:\n- type: queue-scorer\n" + PROFILE + "- name: other\n", ("exactly one", "2 are configured", "disagg-profile-handler"),
    ),
    "decider missing": (
        HEAD + "plugins:\n- type: disagg-profile-handler\n  parameters: {deciders: {prefill: nobody}}\n"
        "schedulingProfiles:\n- name: decode\n- name: prefill\n", ("deciders.prefill", "'nobody'"),
    ),
    "unknown gate": (HEAD + "featureGates: [flowControll]\n", ("unknown feature gate", "did you mean 'flowControl'")),
    "flow control": (HEAD + "featureGates: [flowControl]\n", ("shed, not queued", "saturationDetector")),
    "flow control bands": (HEAD + "flowControl: {maxBytes: 5}\n", ("flowControl.maxBytes", "shed, not queued")),
    "latency scorer": (HEAD + "plugins:\n- type: latency-scorer\n", ("not supported", "token-load-scorer")),
    "precise prefix": (HEAD + "plugins:\n- type: precise-prefix-cache-producer\n", ("use approx-prefix-cache-producer",)),
    "a page of its own": (
        HEAD + "plugins:\n- type: metrics-data-source\n  parameters: {path: /other}\n",
        ("c.yaml:5", "'/other' is not what is read by default", "set at the agent"),
    ),
    "signals of its own": (
        HEAD + "plugins:\n- type: core-metrics-extractor\n  parameters: {engineConfigs: []}\n",
        ("c.yaml:5", "takes no parameter 'engineConfigs' here", "set at the agent"),
    ),
    "a tokenizer": (
        HEAD + "plugins:\n- type: token-producer\n  parameters: {modelName: x}\n",
        ("c.yaml:5", "four bytes a token", "remove it"),
    ),
    "unknown attribute": (
        HEAD + "plugins:\n- type: endpoint-attribute-filter\n  parameters:\n    attribute: kv_cache_use\n"
        "    algorithm: {type: topK, topK: {k: 1}}\n", ("no attribute 'kv_cache_use'", "did you mean 'kv_cache_usage'"),
    ),
    "range upside down": (
        HEAD + "plugins:\n- type: endpoint-attribute-filter\n  parameters:\n    attribute: waiting\n"
        "    algorithm: {type: range, range: {min: 5, max: 1}}\n", ("min 5 must not be above max 1",),
    ),
    "selector without values": (
        HEAD + "plugins:\n- type: label-selector-filter\n  parameters: {matchExpressions: [{key: a, operator: In}]}\n",
        ("operator In needs at least one value",),
    ),
    "detector that is none": (
        HEAD + "plugins:\n- type: queue-scorer\nsaturationDetector: {pluginRef: queue-scorer}\n", ("not a saturation detector",),
    ),
    "discovery": (HEAD + "dataLayer: {discovery: {pluginRef: x}}\n", ("dataLayer.discovery is not supported", "--endpoints-file")),
    "user file missing": (HEAD + "plugins:\n- type: ./nowhere.py:score\n", ("there is no file", "nowhere.py")),
    "user module missing": (HEAD + "plugins:\n- type: no_such_module_here:score\n", ("no_such_module_here", "ModuleNotFoundError")),
}  # fmt: skip
