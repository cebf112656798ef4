"""What `baton simulate --trace` refuses."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from baton.__main__ import main

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
        (("--trace", str(TRACE), "--gpus", "4", "--slo", "ttft=1.0"), "has no unit; write 1.0s or 1.0ms"),
        (("--trace", str(TRACE), "--gpus", "4", "--slo", "e2el=1s"), "write ttft=1s,tpot=50ms (names: ttft, tpot)"),
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
