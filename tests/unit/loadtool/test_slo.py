"""Limits that good responses meet."""

import pytest

from baton.loadtool.errors import SettingError
from baton.loadtool.slo import Slo, parse_slo
from tests.unit.loadtool.measured_runs import completed, failed


def test_batons_and_vllms_notations_are_read() -> None:
    assert parse_slo(()) is None
    expected = Slo(0.5, 0.05, 9.0)
    for parts in (
        ("ttft=500ms,tpot=50ms,e2el=9s",),
        ("ttft=0.5s", "tpot=50ms", "e2el=.15m"),
        ("ttft:500", "tpot:50", "e2el:9000"),
        ("ttft:500 tpot:50", "e2el:9000"),
        ("tpot:50,ttft=500ms,e2el:9000",),
    ):
        assert parse_slo(parts) == expected
    assert str(expected) == "ttft=500ms,tpot=50ms,e2el=9000ms"
    assert parse_slo((str(expected),)) == expected


@pytest.mark.parametrize("text", ["ttft", "ttft:", "ttft:x", "ttft:-1", "ttft:0", "ttft:nan", "itl:5", "ttft:1 ttft:2"])
def test_other_notations_are_refused(text: str) -> None:
    with pytest.raises(SettingError, match=r"^--slo: "):
        parse_slo((text,))


def test_every_limit_must_be_met() -> None:
    record = completed(token_times_s=(0.1, 0.2, 0.4))  # tpot 0.15
    assert Slo(0.11, 0.16, 0.41).is_good(record)
    for slo in (Slo(ttft_s=0.09), Slo(tpot_s=0.14), Slo(e2el_s=0.39), Slo(0.11, 0.14, 0.41)):
        assert not slo.is_good(record)
    assert Slo(tpot_s=0.001).is_good(completed(token_times_s=(3.0,)))  # one token has no time per token
    assert not Slo().is_good(failed(503, "status 503"))
