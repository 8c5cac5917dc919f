"""What the XID error codes of NVIDIA's driver say about the board, for routing.

Source: NVIDIA's catalog (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html): RESET_GPU, RESTART_VM
and RESTART_BM are `RESET`, RESTART_APP is `APPLICATION`, IGNORE is `NOTICE`. NVLink 5 codes (144 to 150) ask for a
reset in some of their variants only, and then the driver says so by 154; 61 is of older boards. Codes that NVIDIA's
device plugin (https://github.com/NVIDIA/k8s-device-plugin, internal/rm/health.go) takes for faults of the application
are so here.
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
    #: What the driver wants done about the errors before it. Counts while NVML's recovery action says the same.
    ADVICE = "advice"
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
    11: "invalid or corrupted push buffer stream",
    13: "graphics engine exception",
    25: "illegal push buffer stream",
    31: "memory page fault of a program",
    32: "invalid or corrupted push buffer stream",
    39: "copy engine exception",
    40: "copy engine exception",
    41: "copy engine exception",
    43: "GPU stopped processing; its program failed",
    45: "a channel was cleaned up after an earlier error",
    68: "video decoder exception",
    69: "graphics engine class error",
    80: "corrupted data sent to the GPU",
    # The catalog would reset the board, NVIDIA's device plugin ignores it. The driver's own advice (154) decides.
    109: "context switch timeout of a program",
    137: "NVLink access without permission",
}
_NOTICE = {
    37: "driver firmware error",
    38: "driver firmware error",
    44: "graphics engine fault during a context switch",
    63: "a memory page was retired or a row remapped; takes effect at the next reset",
    66: "illegal access by the driver",
    67: "illegal access by the driver",
    92: "high rate of corrected memory errors",
    93: "too many writes to the board's information memory",
    121: "corrected error on the chip-to-chip link",
    141: "fast path error of a program",
    157: "a resource could not be retired; work goes on, and the error may come again",
    160: "a memory channel was retired",
    161: "a memory channel could not be retired",
    162: "power smoothing is on again",
    163: "power smoothing is off",
    164: "power smoothing nears the end of its life",
    165: "power smoothing is at the end of its life",
    168: "less memory than the board has",
    171: "detail of a double bit error in DRAM (see 48)",
    172: "detail of a double bit error in SRAM (see 48)",
}
_ADVICE = {
    154: "the driver asks for a recovery action",
}
_TRANSIENT = {
    61: "internal micro-controller warning",
    94: "contained memory error; the program that used the memory was ended",
    144: "NVLink: SAW error",
    145: "NVLink: RLW error",
    146: "NVLink: TLW error",
    147: "NVLink: TREX error",
    148: "NVLink: NVLPW control error",
    149: "NVLink: NETIR error",
    150: "NVLink: MSE error",
    155: "NVLink: error defined by software, such as a link taken down on purpose",
    159: "error on the coherent host interface",
    169: "internal micro-controller halt",
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
    136: "NVLink training failed",
    140: "unrecovered memory error",
    143: "GPU could not be initialised",
    151: "key rotation failed (confidential computing)",
    156: "a resource was retired; takes effect at the next reset",
    158: "fatal timeout of the GPU",
    167: "fatal PCIe timeout",
}

XIDS: dict[int, Xid] = {
    code: Xid(code, kind, meaning)
    for kind, table in (
        (XidKind.APPLICATION, _APPLICATION),
        (XidKind.NOTICE, _NOTICE),
        (XidKind.ADVICE, _ADVICE),
        (XidKind.TRANSIENT, _TRANSIENT),
        (XidKind.RESET, _RESET),
    )
    for code, meaning in table.items()
}


def xid(code: int) -> Xid:
    """What is known of a code. One that is not in the table is a notice: a new driver must not drain a fleet."""
    return XIDS.get(code, Xid(code, XidKind.NOTICE, "not in the table"))
