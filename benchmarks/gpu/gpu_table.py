"""Printer of a stage's results."""

from typing import Any

from benchmarks.report import Report

MAX_WRONG = 20  # failed findings to print


def show(name: str, result: dict[str, Any]) -> None:
    """Print the failed findings, the table if there is one, and the notes."""
    findings: list[dict[str, Any]] = result["findings"]
    wrong = [finding for finding in findings if not finding["ok"]]
    verdict = "right" if result["ok"] else "WRONG"
    print(f"{name}: {verdict}, {len(findings) - len(wrong)} of {len(findings)} findings, {result['seconds']:.0f} s")
    for finding in wrong[:MAX_WRONG]:
        print(f"  {finding['case']}: {finding['detail']}")
    if len(wrong) > MAX_WRONG:
        print(f"  and {len(wrong) - MAX_WRONG} more")
    if not result["ok"]:
        print(f"  {result.get('error', 'its log ends with:')}\n{result['log']}")
    if result["rows"]:
        report = Report(name, list(result["rows"][0]))
        for row in result["rows"]:
            report.add(*row.values())
        report.show()
    for note in result["notes"]:
        print(f"  {note}", flush=True)
