"""Output and exit status of `baton doctor`."""

import io
import json
from dataclasses import replace

from rich.console import Console

from baton.doctor.finding import failure, ok, warning
from baton.doctor.report import Report, Section, show
from tests.unit.doctor.links import LINK

GOOD = Section("this machine", [ok("memlock", "unlimited")], versions={"torch": "2.13"})
DOUBTFUL = Section("prefill-0", [ok("gpus", "none"), warning("file-limit", "1024 [open] files", "ulimit -n 65536")])
BAD = Section("a link", [failure("link-unusable", "refused", "open the port")], [LINK, replace(LINK, transport=None)])


def test_failures_and_strict_warnings_make_a_report_unhealthy() -> None:
    assert Report([GOOD], is_strict=True).is_healthy
    assert Report([GOOD, DOUBTFUL], is_strict=False).is_healthy
    assert not Report([GOOD, DOUBTFUL], is_strict=True).is_healthy
    assert not Report([GOOD, BAD], is_strict=False).is_healthy


def test_json_has_findings_measurements_and_versions() -> None:
    content = json.loads(json.dumps(Report([GOOD, DOUBTFUL, BAD], is_strict=False).to_json()))
    assert (content["healthy"], content["failures"], content["warnings"]) == (False, 1, 1)
    machine, worker, link = content["sections"]
    assert machine["versions"] == {"torch": "2.13"}
    assert worker["findings"][1] == {
        "check": "file-limit",
        "level": "warning",
        "found": "1024 [open] files",
        "remedy": "ulimit -n 65536",
    }
    assert link["links"][0]["rates"]["limit"]["share"] == 0.83


def shown(*, terminal: bool, width: int) -> str:
    output = io.StringIO()
    show(Report([GOOD, DOUBTFUL, BAD], False), Console(file=output, force_terminal=terminal, width=width))
    return output.getvalue()


def test_without_a_terminal_a_finding_is_a_line() -> None:
    lines = shown(terminal=False, width=20).splitlines()
    assert "== prefill-0" in lines
    (line,) = [line for line in lines if "file-limit" in line]
    assert line.split() == ["warning", "file-limit", "1024", "[open]", "files"]
    assert "         -> ulimit -n 65536" in lines
    assert lines[-1] == "== 2 ok, 1 warning, 1 failure"


def test_on_a_terminal_the_output_is_a_table_that_fits() -> None:
    text = shown(terminal=True, width=60)
    assert "\x1b[" in text
    assert "ulimit -n 65536" in text
    assert "[open]" in text
