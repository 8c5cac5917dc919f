"""The answer of `/v1/models`: which names a server answers to, and how long a prompt it takes."""

from __future__ import annotations

import json
from dataclasses import dataclass

from zerohop_agent.signals import SourceError
from zerohop_snapshot.layout import UnhealthyReason

__all__ = ["ServedModels", "parse_models"]

_NAME_LIMIT = 512
_MODELS_LIMIT = 1024


@dataclass(frozen=True, slots=True)
class ServedModels:
    """`names` in the server's order, adapters included; `max_model_len` in tokens, None where it is not said."""

    names: tuple[str, ...]
    #: names whose entry has a parent: LoRA adapters
    adapters: tuple[str, ...]
    max_model_len: int | None


def parse_models(body: bytes) -> ServedModels:
    """Return what an OpenAI-style model list says.

    Raises: SourceError with NOT_METRICS when `body` is none.
    """
    try:
        data = json.loads(body)["data"]
        entries = [entry for entry in data if isinstance(entry, dict) and _is_name(entry.get("id"))]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SourceError(UnhealthyReason.NOT_METRICS, "the model list is not in the OpenAI form") from None
    entries = entries[:_MODELS_LIMIT]
    lengths = [length for entry in entries if (length := _length(entry)) is not None]
    return ServedModels(
        names=tuple(dict.fromkeys(str(entry["id"]) for entry in entries)),
        adapters=tuple(str(entry["id"]) for entry in entries if entry.get("parent")),
        max_model_len=max(lengths, default=None),
    )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _NAME_LIMIT


def _length(entry: dict[str, object]) -> int | None:
    meta = entry.get("meta")
    for value in (entry.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None):
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9:
            return value
    return None
