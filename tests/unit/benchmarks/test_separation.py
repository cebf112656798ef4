"""The comparison of split pools with colocated workers, on the beginning of a trace."""

import pytest

from benchmarks import separation
from benchmarks.report import Report


def test_a_cell_has_the_best_split_and_colocated_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(separation, "TOKEN_BUDGETS", (512,))
    report = Report("", separation.COLUMNS)
    separation.add_cell(report, separation.Cell(separation.AZURE, "ttft=1s,tpot=20ms", 2, 1.0), seconds=20)
    split, colocated = (dict(zip(separation.COLUMNS, row, strict=True)) for row in report.rows)
    assert (split["deployment"], colocated["deployment"]) == ("1 prefill + 1 decode", "2 colocated")
    assert split["offered/s"] == pytest.approx(colocated["offered/s"], rel=0.05)
    assert float(split["handed over %"]) > 0 == float(colocated["handed over %"])
    assert split["SLO"] == "ttft=1s,tpot=20ms"
    assert float(split["good %"]) >= float(colocated["good %"]) > 90
