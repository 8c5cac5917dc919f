"""What a check says."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.StrEnum):
    """How bad it is. A skipped check has nothing to look at here, and says why."""

    OK = "ok"
    SKIP = "skip"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about one thing, and for what is not well one about what to do."""

    check: str
    level: Level
    message: str
    fix: str = ""

    def as_json(self) -> dict[str, str]:
        """The finding as `--json` prints it; `fix` is empty where there is nothing to do."""
        return {"check": self.check, "level": self.level.value, "message": self.message, "fix": self.fix}


def ok(check: str, message: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, message)


def skip(check: str, message: str) -> Finding:
    """Nothing to look at."""
    return Finding(check, Level.SKIP, message)


def warn(check: str, message: str, fix: str) -> Finding:
    """Works, but not as well as it could."""
    return Finding(check, Level.WARN, message, fix)


def fail(check: str, message: str, fix: str) -> Finding:
    """Does not work."""
    return Finding(check, Level.FAIL, message, fix)
