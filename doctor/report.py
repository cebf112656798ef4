"""What an examination found, section by section."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

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


STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "bold red"}


def show(report: Report, console: Console) -> None:
    """Prints the report as the console is."""
    if console.is_terminal:
        for section in report.sections:
            console.print(_table(section), Text())
        console.print(Text(report.summary(), "bold green" if report.is_healthy else "bold red"))
    else:
        for line in plain_lines(report):
            console.print(line, soft_wrap=True, markup=False, highlight=False)


def plain_lines(report: Report) -> Iterator[str]:
    """A line a finding, for grep; what to do stands indented below."""
    for section in report.sections:
        yield f"== {section.about}"
        for finding in section.findings:
            yield f"{finding.level:<8} {finding.check:<24} {finding.found}"
            if finding.remedy is not None:
                yield f"{'':8} -> {finding.remedy}"
    yield f"== {report.summary()}"


def _table(section: Section) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for finding in section.findings:
        table.add_row(Text(finding.level, STYLES[finding.level]), Text(finding.check), _told(finding))
    return Group(Text(section.about, "bold"), table)


def _told(finding: Finding) -> Text:
    if finding.remedy is None:
        return Text(finding.found)
    return Text.assemble(finding.found, "\n", ("-> ", "bold"), (finding.remedy, "italic"))
