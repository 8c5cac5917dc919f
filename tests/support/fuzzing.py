"""Random input for a given time, reproducible by its seed."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator


def play_for(seconds: float, play: Callable[[random.Random], object]) -> None:
    """Call `play` with one generator after another for `seconds`, or for as many as ZEROHOP_FUZZ_SECONDS says.

    The first seeds are the same in every run. ZEROHOP_FUZZ_SEED repeats one alone: a failure says which.
    """
    played = 0
    for seed in _seeds(seconds):
        try:
            play(random.Random(seed))
        except Exception as error:
            raise AssertionError(f"ZEROHOP_FUZZ_SEED={seed}") from error
        played += 1
    assert played


def _seeds(seconds: float) -> Iterator[int]:
    if single := os.environ.get("ZEROHOP_FUZZ_SEED"):
        yield int(single)
        return
    ends = time.monotonic() + float(os.environ.get("ZEROHOP_FUZZ_SECONDS", seconds))
    seed = 0
    while time.monotonic() < ends:
        seed += 1
        yield seed


def damaged(data: bytes, rng: random.Random, *, most: int = 4, others: tuple[bytes, ...] = ()) -> bytes:
    """Return `data` with up to `most` places changed: a byte, bytes more, bytes fewer, a part of another input."""
    out = bytearray(data)
    for _ in range(rng.randrange(most + 1)):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(4)
        if kind == 0 and out:
            out[at % len(out)] = rng.randrange(256)
        elif kind == 1:
            out[at:at] = rng.randbytes(rng.randrange(1, 5))
        elif kind == 2:
            del out[at : at + rng.randrange(1, 9)]
        elif others:
            out[at:at] = rng.choice(others)[: rng.randrange(60)]
    return bytes(out)
