"""What the XID error codes of NVIDIA's driver say about the board, for routing.

Source: NVIDIA, "Xid Errors" (https://docs.nvidia.com/deploy/xid-errors/), and the codes that NVIDIA's device plugin
(https://github.com/NVIDIA/k8s-device-plugin, internal/rm/health.go) takes for faults of the application.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class XidKind(enum.Enum):
    """Whose fault it is, and what it takes until the board can be trusted again."""

    #: A program did something wrong; the board is fine.
    APPLICATION = "application"
    #: Worth a line in a log; the board works on.
    NOTICE = "notice"
    #: Hardware or driver trouble that passes: the board is usable when it has been quiet for a while.
    TRANSIENT = "transient"
    #: The board must be reset (or the driver reloaded, or the node rebooted) before it can be trusted.
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class Xid:
    """One code."""

    code: int
    kind: XidKind
    meaning: str


_APPLICATION = {
    8: "GPU stopped processing for a program",
    13: "graphics engine exception",
    31: "memory page fault of a program",
    32: "invalid or corrupted push buffer stream",
    43: "GPU stopped processing; its program failed",
    45: "a channel was cleaned up after an earlier error",
    68: "video decoder exception",
    69: "graphics engine class error",
    109: "context switch timeout of a program",
    137: "NVLink access without permission",
}
_NOTICE = {
    63: "a memory page was retired or a row remapped; takes effect at the next reset",
    92: "high rate of corrected memory errors",
    121: "corrected error on the chip-to-chip link",
    154: "the recovery action of the GPU has changed",
    156: "a resource was retired",
}
_TRANSIENT = {
    38: "driver firmware error",
    44: "graphics engine fault during a context switch",
    61: "internal micro-controller warning",
    94: "contained memory error; the program that used the memory was ended",
    122: "power management unit could not be read",
    123: "power management unit could not be written",
    136: "NVLink training failed",
    144: "NVLink: SAW error",
    145: "NVLink: RLW error",
    146: "NVLink: TLW error",
    147: "NVLink: TREX error",
    148: "NVLink: NVLPW error",
    149: "NVLink: link error",
    150: "NVLink: MSE error",
    155: "NVLink: error reported by software",
}
_RESET = {
    46: "GPU stopped processing",
    48: "double bit memory error",
    62: "internal micro-controller halt",
    64: "a memory page could not be retired or a row not be remapped",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    110: "security fault",
    119: "no answer from the GPU system processor",
    120: "error in the GPU system processor",
    140: "unrecovered memory error",
    143: "GPU could not be initialised",
    157: "a resource could not be retired",
    158: "fatal timeout of the GPU",
    159: "error on the coherent host interface",
    167: "fatal PCIe timeout",
}

XIDS: dict[int, Xid] = {
    code: Xid(code, kind, meaning)
    for kind, table in (
        (XidKind.APPLICATION, _APPLICATION),
        (XidKind.NOTICE, _NOTICE),
        (XidKind.TRANSIENT, _TRANSIENT),
        (XidKind.RESET, _RESET),
    )
    for code, meaning in table.items()
}


def xid(code: int) -> Xid:
    """What is known of a code. One that is not in the table is a notice: a new driver must not drain a fleet."""
    return XIDS.get(code, Xid(code, XidKind.NOTICE, "not in the table"))
