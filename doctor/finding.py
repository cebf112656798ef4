"""The doctor's findings: one for each check."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from baton.process.errors import PlainError


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"  # works, but slower than it could, or not reliably
    FAILURE = "failure"  # does not work, or not as configured


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check, and its remedy."""

    check: str  # stable name, such as shared-memory-size
    level: Level
    found: str
    remedy: str | None = None  # None: nothing to do

    def __str__(self) -> str:
        return f"{self.check}: {self.found}" + (f" ({self.remedy})" if self.remedy else "")


class Unfit(PlainError):
    """A machine that fails a strict start; the text lists the findings."""


def ok(check: str, found: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(check, Level.OK, found)


def warning(check: str, found: str, remedy: str) -> Finding:
    """Return a finding of something that works, but slower than it could, or not reliably."""
    return Finding(check, Level.WARNING, found, remedy)


def failure(check: str, found: str, remedy: str) -> Finding:
    """Return a finding of something that does not work, or not as configured."""
    return Finding(check, Level.FAILURE, found, remedy)


def require_fit(findings: Iterable[Finding]) -> None:
    """Raise Unfit unless every finding is ok; a strict start checks this before it reports ready."""
    bad = [str(finding) for finding in findings if finding.level is not Level.OK]
    if bad:
        raise Unfit("; ".join(bad))
