"""Output files of `baton bench`."""

import json
from dataclasses import dataclass
from pathlib import Path

import click

from baton.cli.options.flag_group import Flags, flag_group
from baton.loadtool.errors import SettingError
from baton.loadtool.load_report import LoadReport
from baton.loadtool.page.page import render_page
from baton.loadtool.profile import profile, profile_file

FILE = click.Path(dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Paths of the output files; None: do not write."""

    json_file: Path | None
    html_file: Path | None
    profile_file: Path | None
    with_requests: bool  # in the JSON file

    def write(self, report: LoadReport) -> None:
        """Write the files. Raises OSError."""
        if self.json_file is not None:
            self.json_file.write_text(json.dumps(report.to_json(self.with_requests), indent=1) + "\n")
        if self.html_file is not None:
            self.html_file.write_text(render_page(report))
        if self.profile_file is not None:
            requests = profile([each.run for each in report.runs])
            content = profile_file(requests, report.model, report.endpoint, report.when)
            self.profile_file.write_text(json.dumps(content, indent=1) + "\n")


def _make_outputs(flags: Flags) -> Outputs:
    """Check the paths before the run, so that a long run does not end without its results. Raises SettingError."""
    outputs = Outputs(flags["json_file"], flags["html_file"], flags["profile_file"], flags["per_request"])
    for path in (outputs.json_file, outputs.html_file, outputs.profile_file):
        if path is not None and not path.absolute().parent.is_dir():
            raise SettingError(f"{path}: there is no directory {path.absolute().parent}")
    if outputs.with_requests and outputs.json_file is None:
        raise SettingError("--per-request needs --json FILE")
    return outputs


output_flags = flag_group(
    "outputs",
    _make_outputs,
    click.option("--json", "json_file", type=FILE, help="Write all results as JSON."),
    click.option("--per-request", is_flag=True, help="Include every request in the JSON."),
    click.option("--html", "html_file", type=FILE, help="Write an HTML page with charts."),
    click.option("--profile", "profile_file", type=FILE, help="Write timings for `baton simulate --profile`."),
    panel="Files",
)
