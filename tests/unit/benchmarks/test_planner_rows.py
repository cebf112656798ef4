"""The table of the planner's comparison keeps the rows of other traffic."""

import json
from pathlib import Path

from benchmarks.planner.__main__ import COLUMNS, earlier_rows, write
from benchmarks.report import Cell, Report


def row(traffic: str, ratio: float) -> list[Cell]:
    return [traffic, 0, *([ratio] * (len(COLUMNS) - 3)), "earlier"]


def test_a_run_of_one_kind_of_traffic_keeps_the_others(tmp_path: Path) -> None:
    file = tmp_path / "planner.json"
    first = Report("title", COLUMNS, rows=[row("azure", 1.0), row("bursts", 0.8)])
    write(first, file)
    found = json.loads(file.read_text())
    del found["rows"][0]["oracle good"], found["rows"][0]["when"]  # columns that an earlier run did not have
    file.write_text(json.dumps(found))
    second = Report("title", COLUMNS, rows=[row("bursts", 0.9), *earlier_rows(file, {"azure", "day"})])
    write(second, file)
    rows = json.loads(file.read_text())["rows"]
    assert [(each["traffic"], each["good"], each["oracle good"], each["when"]) for each in rows] == [
        ("azure", 1.0, "", found["when"]),
        ("bursts", 0.9, 0.9, "earlier"),
    ]
    assert "good / best fixed, mean: 0.950" in json.loads(file.read_text())["notes"]
