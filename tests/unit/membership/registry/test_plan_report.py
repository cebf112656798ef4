"""Plans of autoscalers as texts in the registry."""

from dataclasses import replace

import orjson
import pytest

from baton.membership.registry.plan_report import PlanReport, PoolPlan, decode_plan, encode_plan

PLAN = PlanReport(
    application="baton",
    model="llama",
    time_s=1e9,
    prefill=PoolPlan(target=3, needed=2, factor=1.5),
    decode=PoolPlan(target=4, needed=4, factor=0.8),
    reason="decode: 3 -> 4: with 4 the TPOT quantile is 0.03 s",
)


def test_a_plan_survives_encoding() -> None:
    assert decode_plan(encode_plan(PLAN)) == PLAN
    later = {**orjson.loads(encode_plan(PLAN)), "unknown": 1}
    assert decode_plan(orjson.dumps(later).decode()) == PLAN


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (replace(PLAN, application=""), "application"),
        (replace(PLAN, time_s=float("inf")), "time_s"),
        (replace(PLAN, prefill=PoolPlan(target=-1, needed=2, factor=1.0)), "prefill.target"),
        (replace(PLAN, decode=PoolPlan(target=1, needed=2, factor=0.0)), "decode.factor"),
        (replace(PLAN, reason="x" * 5000), "reason"),
        (replace(PLAN, reason="\x1b[2J"), "reason: Value error, must be one line of printable characters"),
    ],
)
def test_values_out_of_bounds_are_refused(wrong: PlanReport, field: str) -> None:
    with pytest.raises(ValueError, match=f"is no plan: {field}"):
        decode_plan(encode_plan(wrong))


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "\udc80"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no plan"):
        decode_plan(text)
