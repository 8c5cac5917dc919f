"""From what a GPU reports to what routing does about it: drain it, count it as slower, or neither.

| drains with reason | while | and until |
|---|---|---|
| GPU_LOST | the driver does not reach the board or says that it must be reset | it has answered for `heal_after_ns` |
| ROW_REMAP_FAILURE | a memory row could not be remapped | the driver says otherwise for `heal_after_ns` |
| ECC_UNCORRECTABLE | uncorrectable errors since the driver was loaded are at the bound or past it | the same |
| XID | the driver reported an XID of the hardware kind (`xids.py`) | see `_xid_holds` |

The slowdown factor is the highest SM clock over the clock now, while the driver names heat or a power brake as the
reason for it. It must last before it counts and must be gone for a while before it ends, and a small change keeps the
old value, so that picks do not jump about.

Pure: everything comes in as arguments, and `assess` is called with what it returned before. A GPU that was not read
this time (the driver hangs, or is being reloaded) keeps its last condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from zerohop_agent.xids import XidKind, xid
from zerohop_snapshot.layout import DrainReason, SlowdownReason

_SECOND = 1_000_000_000

#: Bits of NVML's clocks event reasons (nvml.h, nvmlClocksEventReason*).
IDLE = 0x1
SW_POWER_CAP = 0x4
HW_SLOWDOWN = 0x8
SW_THERMAL = 0x20
HW_THERMAL = 0x40
POWER_BRAKE = 0x80


@dataclass(frozen=True, slots=True)
class ConditionSettings:
    """When a GPU's state reaches its endpoints. Times in ns."""

    #: Report, and change nothing for any endpoint.
    observe_only: bool = False
    drain_lost: bool = True
    drain_row_remap_failure: bool = True
    drain_xid: bool = True
    #: Uncorrectable ECC errors since the driver was loaded that drain; 0: never.
    ecc_uncorrectable: int = 1
    heal_after_ns: int = 5 * _SECOND
    #: Codes to drain for besides those of the table, and codes never to drain for.
    xid_also: frozenset[int] = frozenset()
    xid_ignore: frozenset[int] = frozenset()
    #: The board must have been healthy for so long after an XID.
    xid_hold_ns: int = 60 * _SECOND
    #: A code that asks for a reset is forgotten after so long on a board that answers well, if nothing told of a reset.
    xid_reset_hold_ns: int = 3600 * _SECOND
    #: Factors below this are full speed; factors above `slowdown_max` are cut.
    slowdown_min: float = 1.1
    slowdown_max: float = 10.0
    slowdown_after_ns: int = 2 * _SECOND
    slowdown_clear_ns: int = 10 * _SECOND
    #: Count a board at its power limit as slowed. Many boards stand there under full load, by design.
    slowdown_power_cap: bool = False


@dataclass(frozen=True, slots=True)
class XidSeen:
    """An XID event: code and CLOCK_MONOTONIC ns."""

    code: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """What one reading of a board says. None: the driver does not tell (or not on this board)."""

    observed_ns: int
    slow_observed_ns: int = 0
    lost: bool = False
    reset_required: bool = False
    row_remap_failed: bool | None = None
    #: Since the driver was loaded.
    ecc_uncorrectable: float | None = None
    #: NVML's recovery action: 0 none, anything else asks for a reset, a drain or a reboot.
    recovery_action: int | None = None
    #: Newest last.
    xids: tuple[XidSeen, ...] = ()
    #: When the board last came back after it was lost or the driver was away; 0: never.
    returned_ns: int = 0
    clock_event_reasons: int | None = None
    sm_clock_hertz: float | None = None
    sm_clock_max_hertz: float | None = None


@dataclass(frozen=True, slots=True)
class GpuCondition:
    """What routing does about one GPU. The fields after `detail` are `assess`'s own memory between calls."""

    #: None: takes requests.
    drain_reason: DrainReason | None = None
    #: >= 1, 1 = full speed; None: not known.
    slowdown: float | None = None
    slowdown_reason: SlowdownReason = SlowdownReason.NONE
    #: One sentence for a person, such as "XID 79: GPU has fallen off the bus".
    detail: str = ""
    #: Last moment that a reason to drain was seen.
    trouble_ns: int = 0
    #: Since when a slowdown is seen, and since when none is; 0: not now.
    slow_since_ns: int = 0
    free_since_ns: int = 0


HEALTHY = GpuCondition()


def assess(
    healths: Mapping[str, GpuHealth],
    settings: ConditionSettings,
    now_ns: int,
    previous: Mapping[str, GpuCondition],
) -> dict[str, GpuCondition]:
    """The condition of each GPU by UUID: of those in `healths` anew, of the others in `previous` unchanged."""
    conditions = dict(previous)
    for uuid, health in healths.items():
        before = previous.get(uuid, HEALTHY)
        conditions[uuid] = _slow(_drain(before, health, settings, now_ns), health, settings, now_ns)
    return conditions


def effective(conditions: Mapping[str, GpuCondition], settings: ConditionSettings) -> dict[str, GpuCondition]:
    """What reaches the endpoints: nothing when only observing."""
    return {} if settings.observe_only else dict(conditions)


def _drain(before: GpuCondition, health: GpuHealth, settings: ConditionSettings, now_ns: int) -> GpuCondition:
    reason, detail = _trouble(health, settings, now_ns, before.trouble_ns)
    if reason is not None:
        # An XID holds by itself, without new trouble: only what is wrong right now moves the moment.
        trouble_ns = before.trouble_ns if reason is DrainReason.XID and _answers(health) else now_ns
        return replace(before, drain_reason=reason, detail=detail, trouble_ns=trouble_ns)
    if before.drain_reason in (None, DrainReason.XID) or now_ns - before.trouble_ns >= settings.heal_after_ns:
        return replace(before, drain_reason=None, detail="")
    return before


def _trouble(
    health: GpuHealth, settings: ConditionSettings, now_ns: int, trouble_ns: int
) -> tuple[DrainReason | None, str]:
    if health.lost and settings.drain_lost:
        return DrainReason.GPU_LOST, _with_xid("GPU is lost", health, settings)
    if health.reset_required and settings.drain_lost:
        return DrainReason.GPU_LOST, _with_xid("GPU must be reset", health, settings)
    if health.row_remap_failed and settings.drain_row_remap_failure:
        return DrainReason.ROW_REMAP_FAILURE, "a memory row could not be remapped"
    if 0 < settings.ecc_uncorrectable <= (health.ecc_uncorrectable or 0):
        return DrainReason.ECC_UNCORRECTABLE, f"{health.ecc_uncorrectable:g} uncorrectable memory errors"
    event = _last_hardware_xid(health, settings) if settings.drain_xid else None
    if event is not None and _xid_holds(event, health, settings, now_ns, trouble_ns):
        return DrainReason.XID, f"XID {event.code}: {xid(event.code).meaning}"
    return None, ""


def _answers(health: GpuHealth) -> bool:
    return not health.lost and not health.reset_required and not health.recovery_action


def _last_hardware_xid(health: GpuHealth, settings: ConditionSettings) -> XidSeen | None:
    """The newest XID that says that the board is unwell, else the driver's advice while it still asks for something."""
    advice = None
    for event in reversed(health.xids):
        if event.code in settings.xid_ignore:
            continue
        kind = xid(event.code).kind
        if event.code in settings.xid_also or kind in (XidKind.TRANSIENT, XidKind.RESET):
            return event
        if kind is XidKind.ADVICE and health.recovery_action and advice is None:
            advice = event
    return advice


def _xid_holds(event: XidSeen, health: GpuHealth, settings: ConditionSettings, now_ns: int, trouble_ns: int) -> bool:
    """True while the XID keeps the board out.

    The board must answer, must ask for no reset, and must have done so for the hold time. After a code that asks for a
    reset there must also be a sign of one: the board went away and came back, or the driver says, after the XID, that
    no recovery action is due. Where no driver tells, a long time without trouble counts instead.
    """
    if not _answers(health) or now_ns - max(event.at_ns, trouble_ns) < settings.xid_hold_ns:
        return True
    if xid(event.code).kind is not XidKind.RESET:
        return False
    came_back = health.returned_ns > event.at_ns
    nothing_due = health.recovery_action == 0 and health.slow_observed_ns > event.at_ns
    return not (came_back or nothing_due or now_ns - event.at_ns >= settings.xid_reset_hold_ns)


def _with_xid(text: str, health: GpuHealth, settings: ConditionSettings) -> str:
    event = _last_hardware_xid(health, settings)
    return f"{text} (XID {event.code}: {xid(event.code).meaning})" if event is not None else text


def _slow(before: GpuCondition, health: GpuHealth, settings: ConditionSettings, now_ns: int) -> GpuCondition:
    reasons = health.clock_event_reasons
    if health.lost or reasons is None or not health.sm_clock_hertz or not health.sm_clock_max_hertz:
        return replace(before, slowdown=None, slowdown_reason=SlowdownReason.NONE, slow_since_ns=0, free_since_ns=0)
    reason = _slowdown_reason(reasons, settings)
    if reason is not SlowdownReason.NONE and reasons & IDLE:
        return before  # an idle board is clocked down anyway: its clock says nothing about the brake
    factor = min(health.sm_clock_max_hertz / health.sm_clock_hertz, settings.slowdown_max)
    if reason is SlowdownReason.NONE or factor < settings.slowdown_min:
        return _ease(before, settings, now_ns)
    since = before.slow_since_ns or now_ns
    if now_ns - since < settings.slowdown_after_ns:
        return replace(before, slowdown=before.slowdown or 1.0, slow_since_ns=since, free_since_ns=0)
    old = before.slowdown or 1.0
    if before.slowdown_reason is reason and abs(factor - old) < 0.05 * old:
        factor = old
    return replace(before, slowdown=factor, slowdown_reason=reason, slow_since_ns=since, free_since_ns=0)


def _ease(before: GpuCondition, settings: ConditionSettings, now_ns: int) -> GpuCondition:
    since = before.free_since_ns or now_ns
    if before.slowdown_reason is not SlowdownReason.NONE and now_ns - since < settings.slowdown_clear_ns:
        return replace(before, slow_since_ns=0, free_since_ns=since)
    return replace(before, slowdown=1.0, slowdown_reason=SlowdownReason.NONE, slow_since_ns=0, free_since_ns=since)


def _slowdown_reason(reasons: int, settings: ConditionSettings) -> SlowdownReason:
    if reasons & POWER_BRAKE:
        return SlowdownReason.POWER_BRAKE
    if reasons & (SW_THERMAL | HW_THERMAL):
        return SlowdownReason.THERMAL
    if reasons & HW_SLOWDOWN:
        return SlowdownReason.HW_SLOWDOWN
    if reasons & SW_POWER_CAP and settings.slowdown_power_cap:
        return SlowdownReason.POWER_CAP
    return SlowdownReason.NONE
