"""Which adapter is which bit: the slots of the snapshot's adapter columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zerohop_process.log import OncePerChange, get
from zerohop_snapshot.layout import ADAPTER_SLOTS

_logger = get("agent.adapters")
_WORD = (1 << 64) - 1


class AdapterTable:
    """Gives each adapter name on the node one of 128 slots; a slot is given anew only when its adapter is in no row.

    Of the free slots the one that was in use longest ago goes first, so a name that comes and goes keeps its bit.
    """

    def __init__(self, slots: int = ADAPTER_SLOTS, names: Sequence[str | None] = ()) -> None:
        """`names` are those of a previous agent, whose rows are still being read: their bits keep their meaning."""
        kept = list(names[:slots])
        self._names: list[str | None] = kept + [None] * (slots - len(kept))
        self._slots: dict[str, int] = {name: slot for slot, name in enumerate(self._names) if name is not None}
        self._uses = [0] * slots
        #: Slots that no row uses, in order of last use; the values are unused (a dict keeps its order).
        self._idle: dict[int, None] = dict.fromkeys(
            sorted(range(slots), key=lambda slot: self._names[slot] is not None)
        )
        self._once = OncePerChange()
        #: Moves whenever a slot changes its name.
        self.version = 0
        #: Names that found no slot.
        self.refusals = 0

    def names(self) -> list[str | None]:
        """The name in each slot, shortened by the empty slots at the end."""
        end = len(self._names)
        while end and self._names[end - 1] is None:
            end -= 1
        return self._names[:end]

    def slots(self, names: Iterable[str]) -> frozenset[int]:
        """Take one use of each name's slot, for `release` to give back. A name without a slot is left out, counted."""
        taken: set[int] = set()
        for name in names:
            slot = self._slots.get(name)
            if slot is None:
                slot = self._assign(name)
                if slot is None:
                    continue
            if self._uses[slot] == 0:
                self._idle.pop(slot, None)
            self._uses[slot] += 1
            taken.add(slot)
        return frozenset(taken)

    def release(self, slots: Iterable[int]) -> None:
        """Give back what `slots` returned."""
        for slot in slots:
            self._uses[slot] -= 1
            if self._uses[slot] == 0:
                self._idle[slot] = None

    def slot_of(self, name: str) -> int | None:
        """The slot of a name that has one."""
        return self._slots.get(name)

    def _assign(self, name: str) -> int | None:
        slot = next(iter(self._idle), None)
        if slot is None:
            self.refusals += 1
            message = "more adapters in flight than the snapshot has slots"
            self._once.log(_logger, "warning", "full", True, message, slots=len(self._names))
            return None
        self._once.changed("full", False)
        before = self._names[slot]
        if before is not None:
            del self._slots[before]
        self._names[slot] = name
        self._slots[name] = slot
        self.version += 1
        return slot


def words(slots: Iterable[int]) -> tuple[int, int]:
    """The two 64-bit columns in which the given slots' bits are set."""
    mask = 0
    for slot in slots:
        mask |= 1 << slot
    return mask & _WORD, mask >> 64
