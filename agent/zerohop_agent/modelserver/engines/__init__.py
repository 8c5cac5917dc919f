"""The engines that are understood without configuration, one file each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from zerohop_agent.modelserver.engines import llamacpp, lmdeploy, sglang, tgi, triton, trtllm, vllm
from zerohop_agent.modelserver.mapping import EngineMapping

__all__ = ["ENGINES"]

#: name -> mapping, in the order in which a page is tried
ENGINES: Mapping[str, EngineMapping] = MappingProxyType(
    {module.MAPPING.name: module.MAPPING for module in (vllm, sglang, trtllm, triton, tgi, llamacpp, lmdeploy)}
)
