"""Profile handlers: which scheduling profiles run for a request, in which order, and what their results become.

A handler is called with ``run`` (a function from a profile's name to its result, None when nothing is left) and the
request; it returns a ``Plan`` or None when its primary profile found nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from zerohop_picker.request.kinds import RequestKind
from zerohop_picker.scheduling.plugin import Parameter, PluginType
from zerohop_picker.scheduling.request import Request
from zerohop_process.strict import Fields, Node, integer, text, within

PREFILL_HEADER: Final = "x-prefiller-host-port"
ENCODE_HEADER: Final = "x-encoder-hosts-ports"
DATA_PARALLEL_HEADER: Final = "x-data-parallel-host-port"
PROFILE_HEADER: Final = "epp-profile"


class Result(Protocol):
    """What is needed of a profile's result."""

    @property
    def rows(self) -> tuple[int, ...]: ...  # noqa: D102

    @property
    def addresses(self) -> tuple[str, ...]: ...  # noqa: D102

    def uncached_tokens(self, request: Request) -> float: ...  # noqa: D102


Run = Callable[[str], Any]


@dataclass(slots=True)
class Plan:
    """What a handler decided: results by profile, which of them is primary, and headers for the model server."""

    primary: str
    results: dict[str, Any]
    request_headers: tuple[tuple[str, bytes], ...] = ()
    #: The profile whose endpoint does the prefill, and so carries the prompt's tokens; "" = the primary one.
    prefill: str = ""


class Single:
    """Runs the only profile."""

    def __init__(self) -> None:
        """Wait for ``link``."""
        self.profile = ""

    def link(self, profiles: tuple[str, ...], _deciders: Mapping[str, Any]) -> str | None:
        """Take the configured profiles; return what is wrong with them, None when nothing is."""
        if len(profiles) != 1:
            return f"single-profile-handler runs exactly one scheduling profile, and {len(profiles)} are configured"
        self.profile = profiles[0]
        return None

    def primary(self, _request: Request) -> str:
        """Return the profile whose endpoint answers the client."""
        return self.profile

    def __call__(self, run: Run, _request: Request) -> Plan | None:
        """Run the profile."""
        result = run(self.profile)
        return None if result is None else Plan(self.profile, {self.profile: result})


class ByHeader:
    """Runs the profile that a request header names, or a default."""

    def __init__(self, header_name: str, default_profile: str) -> None:
        """Read ``headerName``."""
        self._header = header_name.lower()
        self._default = default_profile
        self._profiles: tuple[str, ...] = ()

    def link(self, profiles: tuple[str, ...], _deciders: Mapping[str, Any]) -> str | None:
        """Take the configured profiles; return what is wrong with them, None when nothing is."""
        self._profiles = profiles
        if self._default not in profiles:
            return f"defaultProfile {self._default!r} is none of the scheduling profiles ({', '.join(profiles)})"
        return None

    def primary(self, request: Request) -> str:
        """Return the profile whose endpoint answers the client."""
        name: str = request.headers.get(self._header, self._default)
        return name if name in self._profiles else self._default

    def __call__(self, run: Run, request: Request) -> Plan | None:
        """Run the named profile; a name that does not exist means the default."""
        name = self.primary(request)
        result = run(name)
        return None if result is None else Plan(name, {name: result})


@dataclass(frozen=True, slots=True)
class Names:
    """The profiles of the stages."""

    decode: str = "decode"
    prefill: str = "prefill"
    encode: str = "encode"


@dataclass(frozen=True, slots=True)
class Deciders:
    """The plugins that say whether a stage runs; "" = never."""

    prefill: str = ""
    encode: str = ""


def read_profiles(node: Node) -> Names:
    """Read ``profiles``."""
    fields = Fields(node)
    names = Names(*(fields.take(stage, text, stage) for stage in ("decode", "prefill", "encode")))
    fields.finish()
    return names


def read_deciders(node: Node) -> Deciders:
    """Read ``deciders``."""
    fields = Fields(node)
    deciders = Deciders(*(fields.take(stage, text, "") for stage in ("prefill", "encode")))
    fields.finish()
    return deciders


class Disaggregated:
    """Runs decode always, then encode and prefill where their deciders say so, and names those endpoints in headers."""

    def __init__(self, profiles: Names, deciders: Deciders) -> None:
        """Use the given profiles and deciders."""
        self.names = profiles
        self.deciders = deciders
        self._decide: dict[str, Callable[[Request, Result], bool]] = {}

    def link(self, profiles: tuple[str, ...], deciders: Mapping[str, Any]) -> str | None:
        """Take the configured profiles and deciders; return what is wrong with them, None when nothing is."""
        if self.names.decode not in profiles:
            return (
                f"the decode profile {self.names.decode!r} is none of the scheduling profiles ({', '.join(profiles)})"
            )
        for stage, decider in (("prefill", self.deciders.prefill), ("encode", self.deciders.encode)):
            if not decider:
                continue
            if decider not in deciders:
                return f"deciders.{stage} names {decider!r}, which is no decider among the plugins"
            if getattr(self.names, stage) not in profiles:
                return f"deciders.{stage} is set, but there is no scheduling profile {getattr(self.names, stage)!r}"
            self._decide[stage] = deciders[decider]
        return None

    def primary(self, _request: Request) -> str:
        """Return the profile whose endpoint answers the client."""
        return self.names.decode

    def __call__(self, run: Run, request: Request) -> Plan | None:
        """Run the stages. A stage that finds no endpoint is left out: decode then does its work, too."""
        decode = run(self.names.decode)
        if decode is None:
            return None
        plan = Plan(self.names.decode, {self.names.decode: decode})
        headers: list[tuple[str, bytes]] = []
        for stage, header in (("encode", ENCODE_HEADER), ("prefill", PREFILL_HEADER)):
            decide = self._decide.get(stage)
            if decide is None or not decide(request, decode):
                continue
            result = run(getattr(self.names, stage))
            if result is None:
                continue
            plan.results[getattr(self.names, stage)] = result
            addresses = result.addresses if stage == "encode" else result.addresses[:1]
            headers.append((header, ",".join(addresses).encode()))
            if stage == "prefill":
                plan.prefill = self.names.prefill
        plan.request_headers = tuple(headers)
        return plan


def pd_profile_handler(
    prefill_profile: str, decode_profile: str, threshold: int, hash_block_size: int, decider_plugin_name: str
) -> Disaggregated:
    """Return the deprecated handler as the current one; its own threshold counts characters that are not cached."""
    del hash_block_size
    handler = Disaggregated(Names(decode_profile, prefill_profile), Deciders(decider_plugin_name))
    if not decider_plugin_name:
        handler.deciders = Deciders()
        handler._decide["prefill"] = PrefixBased(max(1, threshold // 4), 0) if threshold else always  # noqa: SLF001
    return handler


class DataParallel:
    """Runs the only profile and sends the request to the pod's primary port, naming the chosen rank in a header."""

    def __init__(self, primary_port: int) -> None:
        """Send requests to ``primaryPort``."""
        self._port = primary_port
        self._single = Single()

    def link(self, profiles: tuple[str, ...], deciders: Mapping[str, Any]) -> str | None:
        """Take the configured profiles; return what is wrong with them, None when nothing is."""
        return self._single.link(profiles, deciders)

    def primary(self, request: Request) -> str:
        """Return the profile whose endpoint answers the client."""
        return self._single.primary(request)

    def __call__(self, run: Run, request: Request) -> Plan | None:
        """Run the profile; the first rank goes into the header, the destination keeps its host."""
        plan = self._single(run, request)
        if plan is not None:
            result = plan.results[plan.primary]
            plan.request_headers = ((DATA_PARALLEL_HEADER, result.addresses[0].encode()),)
            result.redirect(self._port)
        return plan


class PrefixBased:
    """Says yes when enough of the prompt would have to be prefilled at the decode endpoint."""

    def __init__(self, non_cached_tokens: int, prompt_tokens: int) -> None:
        """Ask for at least ``nonCachedTokens`` (0 = never) in a prompt of at least ``promptTokens``."""
        self._uncached = non_cached_tokens
        self._prompt = prompt_tokens

    def __call__(self, request: Request, decode: Result) -> bool:
        """Return whether prefill should go elsewhere."""
        if self._uncached == 0 or request.prompt_tokens < self._prompt:
            return False
        return decode.uncached_tokens(request) >= self._uncached


def always(_request: Request, _decode: Result) -> bool:
    """Say yes."""
    return True


_PARTS = (b'"image_url"', b'"input_audio"', b'"video_url"', b'"audio_url"', b'"input_image"')


def multimodal(request: Request, _decode: Result) -> bool:
    """Say yes when the request has image, audio or video parts.

    A search in the bytes, not a parse: text that quotes such a key costs an encode stage that was not needed.
    """
    body = request.llm.body
    return (
        body is not None
        and request.llm.kind in (RequestKind.CHAT, RequestKind.MESSAGES, RequestKind.RESPONSES)
        and any(part in body for part in _PARTS)
    )


TYPES: tuple[PluginType, ...] = (
    PluginType("single-profile-handler", "profile-handler", Single),
    PluginType(
        "header-profile-handler", "profile-handler", ByHeader,
        parameters=(
            Parameter("headerName", text, "EPP-Profile", "request header that names the profile"),
            Parameter("defaultProfile", text, "decode", "profile without the header"),
        ),
    ),
    PluginType(
        "disagg-profile-handler", "profile-handler", Disaggregated,
        parameters=(
            Parameter("profiles", read_profiles, Names(), "names of the decode, prefill and encode profiles"),
            Parameter("deciders", read_deciders, Deciders(), "plugins that say whether prefill and encode run"),
        ),
    ),
    PluginType(
        "pd-profile-handler", "profile-handler", pd_profile_handler, note="deprecated: use disagg-profile-handler",
        parameters=(
            Parameter("prefillProfile", text, "prefill"),
            Parameter("decodeProfile", text, "decode"),
            Parameter("threshold", within(integer, 0, 10**9), 0, "uncached characters above which prefill runs apart"),
            Parameter("hashBlockSize", within(integer, 1, 10**6), 64, "not used: the directory has its own blocks"),
            Parameter("deciderPluginName", text, "", "decider; empty: by threshold"),
        ),
    ),
    PluginType(
        "data-parallel-profile-handler", "profile-handler", DataParallel,
        note="deprecated: list each rank's port as an endpoint of its own",
        parameters=(Parameter("primaryPort", within(integer, 1, 65_535), 8000, "port that takes all requests"),),
    ),
    PluginType(
        "prefix-based-pd-decider", "decider", PrefixBased, reads=("prefix",),
        parameters=(
            Parameter("nonCachedTokens", within(integer, 0, 10**9), 0, "uncached tokens from which prefill runs apart"),
            Parameter("promptTokens", within(integer, 0, 10**9), 0, "shorter prompts never do"),
        ),
    ),
    PluginType("always-disagg-pd-decider", "decider", lambda: always),
    PluginType("always-disagg-multimodal-decider", "decider", lambda: multimodal),
)  # fmt: skip
