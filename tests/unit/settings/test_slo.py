"""Service level objectives such as `ttft=1s,tpot=50ms`, in all commands."""

import pytest

from baton.deployment.autoscaling.settings import SLO
from baton.deployment.ray.scaling_options import read_settings
from baton.router.config import RouterConfig
from baton.router.policy.targets import DEFAULT_TARGETS, Targets
from baton.settings.slo import parse_slo
from baton.settings.values import OptionError


@pytest.mark.parametrize(
    ("text", "limits_s"),
    [
        ("ttft=1s,tpot=50ms", {"ttft": 1.0, "tpot": 0.05}),
        ("tpot=0.5s ttft=2m", {"ttft": 120.0, "tpot": 0.5}),
        ("ttft=.5s", {"ttft": 0.5}),
    ],
)
def test_times_have_units(text: str, limits_s: dict[str, float]) -> None:
    assert parse_slo(text) == pytest.approx(limits_s)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft=1", "'ttft=1' has no unit; write 1s or 1ms"),
        ("ttft=0s", "'ttft=0s' must be above 0"),
        ("ttft=-1s", "write it like 50ms, 1.5s or 2m"),
        ("ttft=infs", "write it like 50ms, 1.5s or 2m"),
        ("ttft=1h", "write it like 50ms, 1.5s or 2m"),
        ("ttft:1s", r"'ttft:1s' is not an objective; write ttft=1s,tpot=50ms \(names: ttft, tpot\)"),
        ("itl=5ms", "'itl=5ms' is not an objective"),
        ("ttft=1s,ttft=2s", "ttft is given twice"),
        ("", "it is empty; write ttft=1s,tpot=50ms"),
    ],
)
def test_invalid_objectives_are_refused_with_an_example(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_slo(text)


def test_a_router_accepts_slo_and_the_older_options() -> None:
    expected = {"ttft": 0.5, "tpot": 0.05}
    assert RouterConfig(model="m", slo="ttft=500ms,tpot=50ms").promised_s() == expected
    assert RouterConfig(model="m", target_ttft_ms=500, target_tpot_ms=50).promised_s() == expected
    assert RouterConfig(model="m").promised_s() == {"ttft": 1.0, "tpot": 0.05}
    assert RouterConfig(model="m", slo="none").promised_s() == {}


def test_routers_simulations_and_the_autoscaler_have_the_same_defaults() -> None:
    promised_s = RouterConfig(model="m").promised_s()
    assert Targets(promised_s["ttft"], promised_s["tpot"]) == DEFAULT_TARGETS
    assert SLO.of(promised_s) == SLO()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slo": "ttft=500ms"}, "slo: ttft=500ms must have both ttft and tpot"),
        ({"slo": "ttft=500"}, "slo: 'ttft=500' has no unit"),
        ({"slo": "ttft=1s,tpot=1s", "target_ttft_ms": 1.0, "target_tpot_ms": 1.0}, "slo: .* give slo alone"),
    ],
)
def test_a_router_refuses_only_one_of_the_two_targets(options: dict[str, str | float], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        RouterConfig(model="m", **options)  # type: ignore[arg-type]  # one of each kind


def test_the_autoscaling_policy_accepts_slo() -> None:
    assert read_settings({"budget_gpus": 2, "slo": "ttft=2s"}).slo == SLO(ttft_s=2.0)
