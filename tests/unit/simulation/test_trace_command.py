"""What `baton simulate --trace` refuses, and the times that it promises."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from baton.__main__ import main
from baton.cli.simulate_trace import parse_slo
from baton.deployment.autoscaling.settings import SLO
from baton.loadtool.errors import SettingError

TRACE = Path(__file__).parents[3] / "benchmarks" / "data" / "mooncake_conversation.csv"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--gpus", "4"), "--gpus goes with --trace"),
        (("--both", "1", "--rate-scale", "1"), "--rate-scale goes with --trace"),
        (("--both", "1", "--max-input-len", "5"), "--max-input-len goes with --trace"),
        (("--trace", str(TRACE), "--gpus", "4", "--registry", "redis://nowhere"), "--registry is for workers that"),
        (("--trace", str(TRACE), "--gpus", "4", "--time-scale", "1"), "--time-scale is for workers that serve"),
        (("--trace", str(TRACE)), "say by --gpus how many"),
        (("--trace", str(TRACE), "--gpus", "4", "--slo", "ttft=0"), "must be like ttft=1.0,tpot=0.05"),
        (("--trace", str(TRACE), "--gpus", "4", "--prefill", "3"), "each pool needs the other"),
        (("--trace", str(TRACE), "--gpus", "4", "--prefill", "3", "--decode", "2"), "the workers that are asked for"),
        (("--trace", str(TRACE), "--gpus", "4", "--both", "2", "--autoscale"), "without --autoscale"),
        (("--trace", str(TRACE), "--gpus", "4", "--json", "/nowhere/at/all.json"), "there is no directory"),
        (("--trace", __file__, "--gpus", "4"), "no JSON"),
        (("--trace", str(TRACE), "--gpus", "4", "--profile", str(TRACE)), "no JSON"),
        ((), "there is no worker to simulate"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(flags: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(main, ["simulate", *flags])
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code > 0
    assert message in " ".join(result.output.split())


def test_an_slo_is_in_seconds() -> None:
    assert parse_slo("") == SLO()
    assert parse_slo("ttft=2") == SLO(ttft_s=2.0)
    assert parse_slo("tpot=0.02, ttft=0.5") == SLO(ttft_s=0.5, tpot_s=0.02)
    for text in ("ttft", "ttft=-1", "ttft=inf", "e2el=3", "ttft=1,ttft=2"):
        with pytest.raises(SettingError, match="must be like"):
            parse_slo(text)
