"""The choice without plugins: past the deadline, after a fault of our own, and while the agent is silent."""

from __future__ import annotations

import itertools

import numpy as np

from zerohop_picker.scheduling.request import Randomness
from zerohop_picker.state.endpoints import Endpoints
from zerohop_picker.state.view import Floats

#: Endpoints in the list: one to try and two to retry.
FALLBACK_LENGTH = 3


class Fallback:
    """Orders candidates by what is still known of them."""

    def __init__(self) -> None:
        """Start the round."""
        self._turn = itertools.count()

    def by_load(self, endpoints: Endpoints, _random: Randomness) -> list[int]:
        """Return rows by least waiting + picks since (unknown last), then least in flight, then round robin."""
        return self._ordered(endpoints, np.nan_to_num(endpoints.waiting, nan=np.inf))

    def by_in_flight(self, endpoints: Endpoints, _random: Randomness) -> list[int]:
        """Return rows by least in flight, then round robin: the snapshot's own values are too old to be used.

        Where responses are not observed nothing stays in flight, and this is round robin.
        """
        return self._ordered(endpoints, np.zeros(len(endpoints)))

    def _ordered(self, endpoints: Endpoints, load: Floats) -> list[int]:
        size = len(endpoints)
        turn = (np.arange(size) - next(self._turn)) % size
        order = np.lexsort((turn, endpoints.in_flight, load))
        rows: list[int] = endpoints.rows[order[:FALLBACK_LENGTH]].tolist()
        return rows
