"""What an examination found, section by section."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from baton.doctor.finding import Finding, Level
from baton.doctor.link import Link


@dataclass(frozen=True, slots=True)
class Section:
    """What was found about one thing, and what was measured."""

    about: str
    findings: Sequence[Finding]
    links: Sequence[Link] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """All of it; what there is none of is left out."""
        return {
            "about": self.about,
            "findings": [asdict(finding) for finding in self.findings],
            **({"links": [asdict(link) for link in self.links]} if self.links else {}),
            **({"versions": dict(self.versions)} if self.versions else {}),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """A whole examination."""

    sections: Sequence[Section]
    is_strict: bool  # warnings count as failures

    def count(self, level: Level) -> int:
        """Findings of a level."""
        return sum(finding.level is level for section in self.sections for finding in section.findings)

    @property
    def is_healthy(self) -> bool:
        """Whether nothing failed."""
        return self.count(Level.FAILURE) == 0 and not (self.is_strict and self.count(Level.WARNING))

    def summary(self) -> str:
        """In one line."""
        return ", ".join(f"{self.count(level)} {level}" for level in Level)

    def to_json(self) -> dict[str, object]:
        """For programs; the names of checks are stable, texts are for people."""
        return {
            "healthy": self.is_healthy,
            "strict": self.is_strict,
            "failures": self.count(Level.FAILURE),
            "warnings": self.count(Level.WARNING),
            "sections": [section.to_json() for section in self.sections],
        }
