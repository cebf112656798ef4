"""Encoding of routers' reports."""

import orjson
import pytest

from baton.membership.registry.router_report import SampleSums, decode_report, encode_report
from tests.unit.membership.registry.router_reports import router_report, worker_report


def test_a_report_round_trips() -> None:
    prefill = worker_report("prefill-0", "prefill", draining=True, latency={-30: 2, 0: 1, 5: 7})
    report = router_report(prefill, worker_report())
    assert decode_report(encode_report(report)) == report


def test_fields_of_a_later_version_are_ignored() -> None:
    values = orjson.loads(encode_report(router_report(worker_report())))
    values["weather"] = "fine"
    values["workers"][0]["colour"] = {"name": "red"}
    assert decode_report(orjson.dumps(values).decode()) == router_report(worker_report())


@pytest.mark.parametrize("change", [{"workers": 5}, {"router_id": None}, {"time_s": "soon"}, {"traffic": {}}])
def test_an_invalid_report_is_refused(change: dict[str, object]) -> None:
    values = {**orjson.loads(encode_report(router_report())), **change}
    with pytest.raises(ValueError, match=f"is no report: {next(iter(change))}"):
        decode_report(orjson.dumps(values).decode())
    for text in ("", "[]", "{", "null"):
        with pytest.raises(ValueError, match="is no report"):
            decode_report(text)


def test_sums_add_up() -> None:
    assert sum([SampleSums(1, 2.0, 4.0), SampleSums(2, 3.0, 5.0)], SampleSums()) == SampleSums(3, 5.0, 9.0)
