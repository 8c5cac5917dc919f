"""Pickers: from scores to an ordered list of candidates, best first.

Each is called with (scores, count, random): scores are finite, one per candidate; it returns at most ``count`` distinct
indices. Exact ties are broken at random, always: two pickers that see the same scores must not choose alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from zerohop_picker.scheduling.plugin import Parameter, PluginType
from zerohop_picker.scheduling.request import Randomness
from zerohop_picker.state.view import Floats
from zerohop_process.strict import integer, within

#: Noise that breaks ties: a fixed table, read from a random place. Its height is far below any difference of meaning
#: and far above what two ways of adding the same numbers differ by. Drawing fresh noise costs 3 us at 16 candidates.
_TIE: Final = 1e-12
_PLACES: Final = 17
_LARGEST: Final = 1 << 12
#: The one place that scores with noise are written to: a decision runs to its end before the next one starts.
_SCRATCH: Final = np.empty(_LARGEST)
#: Its beginning, by length: a look-up is cheaper than a slice.
_SCRATCHES: Final[dict[int, Floats]] = {}
_NOISE: Final = np.random.Generator(np.random.PCG64(7)).random((1 << _PLACES) + _LARGEST) * _TIE


def max_score(scores: Floats, count: int, random: Randomness) -> list[int]:
    """Return the highest scores in falling order."""
    size = len(scores)
    if size <= _LARGEST:
        start = random.getrandbits(_PLACES)
        key = _SCRATCHES.get(size)
        if key is None:
            key = _SCRATCHES[size] = _SCRATCH[:size]
        np.add(scores, _NOISE[start : start + size], key)
    else:
        key = scores + np.random.Generator(np.random.PCG64(random.getrandbits(64))).random(size) * _TIE
    if count > 4:
        return [int(index) for index in np.argsort(-key)[:count]]
    chosen = []
    for _ in range(min(count, size)):
        index = int(key.argmax())
        chosen.append(index)
        key[index] = -math.inf
    return chosen


def random_order(scores: Floats, count: int, random: Randomness) -> list[int]:
    """Return candidates in random order, whatever their scores."""
    order = list(range(len(scores)))
    for place in range(min(count, len(order))):
        other = place + int(random.random() * (len(order) - place))
        order[place], order[other] = order[other], order[place]
    return order[:count]


def weighted_random(scores: Floats, count: int, random: Randomness) -> list[int]:
    """Return candidates drawn one after the other with probability in proportion to their scores.

    Keys log(U) / w, largest first (A-Res). A score of 0 is never drawn; when no score is above 0, all are alike.
    """
    if not (scores > 0.0).any():
        return random_order(scores, count, random)
    keys = []
    for index, weight in enumerate(scores.tolist()):
        if weight > 0.0:
            keys.append((math.log(1.0 - random.random()) / weight, index))
    keys.sort(reverse=True)
    return [index for _, index in keys[:count]]


def power_of_two(scores: Floats, count: int, random: Randomness) -> list[int]:
    """Return the better of two candidates drawn at random, then the other, then the rest by score.

    Two choices keep most of the gain of the best one, and a stale score does not draw the whole herd.
    """
    size = len(scores)
    if size <= 2:
        return max_score(scores, count, random)
    first = int(random.random() * size)
    second = int(random.random() * (size - 1))
    second += second >= first
    if scores[second] > scores[first] or (scores[second] == scores[first] and random.random() < 0.5):
        first, second = second, first
    chosen = [first, second]
    if count > 2:
        chosen += [index for index in max_score(scores, count + 2, random) if index not in (first, second)]
    return chosen[:count]


_COUNT = Parameter("maxNumOfEndpoints", within(integer, 1, 100), 1, "endpoints in the ordered list")


def _type(name: str, function: Callable[[Floats, int, Randomness], list[int]]) -> PluginType:
    def make(max_num_of_endpoints: int) -> Callable[[Floats, int, Randomness], list[int]]:
        del max_num_of_endpoints  # the pipeline passes it with every call
        return function

    return PluginType(name, "picker", make, parameters=(_COUNT,))


TYPES: tuple[PluginType, ...] = (
    _type("max-score-picker", max_score),
    _type("random-picker", random_order),
    _type("weighted-random-picker", weighted_random),
    _type("power-of-two-picker", power_of_two),
)
