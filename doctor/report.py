"""The report of an examination, as JSON, text or a table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from baton.doctor.finding import Finding, Level
from baton.doctor.link import Link


@dataclass(frozen=True, slots=True)
class Section:
    """Findings and measurements of one subject."""

    about: str
    findings: Sequence[Finding]
    links: Sequence[Link] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the section as JSON, without empty parts."""
        return {
            "about": self.about,
            "findings": [asdict(finding) for finding in self.findings],
            **({"links": [asdict(link) for link in self.links]} if self.links else {}),
            **({"versions": dict(self.versions)} if self.versions else {}),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All sections of an examination."""

    sections: Sequence[Section]
    is_strict: bool  # warnings count as failures

    def count(self, level: Level) -> int:
        """Return the number of findings with a level."""
        return sum(finding.level is level for section in self.sections for finding in section.findings)

    @property
    def is_healthy(self) -> bool:
        """Whether there are no failures, and no warnings if the report is strict."""
        return self.count(Level.FAILURE) == 0 and not (self.is_strict and self.count(Level.WARNING))

    def summary(self) -> str:
        """Return the counts by level in one line."""
        return ", ".join(f"{self.count(level)} {level}" for level in Level)

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON. The names of checks are stable; texts may change."""
        return {
            "healthy": self.is_healthy,
            "strict": self.is_strict,
            "failures": self.count(Level.FAILURE),
            "warnings": self.count(Level.WARNING),
            "sections": [section.to_json() for section in self.sections],
        }


STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "bold red"}


def show(report: Report, console: Console) -> None:
    """Print the report: tables on a terminal, otherwise plain lines."""
    if console.is_terminal:
        for section in report.sections:
            console.print(_table(section), Text())
        console.print(Text(report.summary(), "bold green" if report.is_healthy else "bold red"))
    else:
        for line in plain_lines(report):
            console.print(line, soft_wrap=True, markup=False, highlight=False)


def plain_lines(report: Report) -> Iterator[str]:
    """Yield one line per finding, for grep, each followed by its indented remedy."""
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
        table.add_row(Text(finding.level, STYLES[finding.level]), Text(finding.check), _text(finding))
    return Group(Text(section.about, "bold"), table)


def _text(finding: Finding) -> Text:
    if finding.remedy is None:
        return Text(finding.found)
    return Text.assemble(finding.found, "\n", ("-> ", "bold"), (finding.remedy, "italic"))
