"""What the doctor says: one finding a check."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from baton.process.errors import PlainError


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"  # it works, but worse than it could, or not for sure
    FAILURE = "failure"  # it does not work, or not as it was asked to


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found, and what to do about it."""

    check: str  # stable name, such as shared-memory-size
    level: Level
    found: str
    remedy: str | None = None  # None: nothing has to be done

    def __str__(self) -> str:
        return f"{self.check}: {self.found}" + (f" ({self.remedy})" if self.remedy else "")


class Unfit(PlainError):
    """The machine is not as a strict start wants it; the text has every finding that says so."""


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, found)


def warning(check: str, found: str, remedy: str) -> Finding:
    """It works, but worse than it could, or not for sure."""
    return Finding(check, Level.WARNING, found, remedy)


def failure(check: str, found: str, remedy: str) -> Finding:
    """It does not work, or not as it was asked to."""
    return Finding(check, Level.FAILURE, found, remedy)


def require_fit(findings: Iterable[Finding]) -> None:
    """Raises Unfit unless every finding is ok: what a strict start asks before it says that it is ready."""
    bad = [str(finding) for finding in findings if finding.level is not Level.OK]
    if bad:
        raise Unfit("; ".join(bad))
