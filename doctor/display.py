"""A report for people: tables on a terminal, else plain lines."""

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from baton.doctor.finding import Finding, Level
from baton.doctor.report import Report, Section

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
