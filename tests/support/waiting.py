"""Waiting for something to become true: the only place in the tests that polls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

_INTERVAL_S = 0.005


def eventually(predicate: Callable[[], T], timeout: float = 10.0, what: str = "") -> T:
    """Return the first true value of ``predicate``. Raises: AssertionError after ``timeout`` seconds.

    An AssertionError inside ``predicate`` counts as not yet; the last one is shown.
    """
    deadline = time.monotonic() + timeout
    while True:
        value, failure = _attempt(predicate)
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(_complaint(what, timeout, value)) from failure
        time.sleep(_INTERVAL_S)


@overload
async def eventually_async(predicate: Callable[[], Awaitable[T]], timeout: float = ..., what: str = ...) -> T: ...
@overload
async def eventually_async(predicate: Callable[[], T], timeout: float = ..., what: str = ...) -> T: ...
async def eventually_async(predicate: Callable[[], Any], timeout: float = 10.0, what: str = "") -> Any:
    """Return the first true value of ``predicate``, a function or a coroutine function, without holding up the loop."""
    deadline = time.monotonic() + timeout
    while True:
        value: object
        failure: AssertionError | None = None
        try:
            value = predicate()
            if isinstance(value, Awaitable):
                value = await value
        except AssertionError as error:
            value, failure = None, error
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(_complaint(what, timeout, value)) from failure
        await asyncio.sleep(_INTERVAL_S)


def hold(predicate: Callable[[], object], duration: float, what: str = "") -> None:
    """Check that ``predicate`` stays true for ``duration`` seconds."""
    deadline = time.monotonic() + duration
    while time.monotonic() < deadline:
        assert predicate(), f"stopped being true: {what or predicate}"
        time.sleep(_INTERVAL_S)


async def hold_async(predicate: Callable[[], object], duration: float, what: str = "") -> None:
    """Check that ``predicate`` stays true for ``duration`` seconds, without holding up the loop."""
    deadline = time.monotonic() + duration
    while time.monotonic() < deadline:
        assert predicate(), f"stopped being true: {what or predicate}"
        await asyncio.sleep(_INTERVAL_S)


def _attempt(predicate: Callable[[], T]) -> tuple[T | None, AssertionError | None]:
    try:
        return predicate(), None
    except AssertionError as error:
        return None, error


def _complaint(what: str, timeout: float, value: object) -> str:
    return f"{what or 'condition'} did not come true within {timeout:g} s (last value: {value!r})"
