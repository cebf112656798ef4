"""Refusals of `baton simulate --trace`."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from baton.__main__ import main

TRACE = Path(__file__).parents[3] / "benchmarks" / "data" / "mooncake_conversation.csv"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--gpus", "4"), "--gpus needs --trace"),
        (("--colocated", "1", "--rate-scale", "1"), "--rate-scale needs --trace"),
        (("--colocated", "1", "--max-input-len", "5"), "--max-input-len needs --trace"),
        (
            ("--trace", str(TRACE), "--gpus", "4", "--registry", "redis://nowhere"),
            "--registry cannot be combined with --trace",
        ),
        (("--trace", str(TRACE), "--gpus", "4", "--time-scale", "1"), "--time-scale cannot be combined with --trace"),
        (("--trace", str(TRACE)), "--trace needs --gpus"),
        (("--trace", str(TRACE), "--gpus", "4", "--slo", "ttft=1.0"), "has no unit; write 1.0s or 1.0ms"),
        (("--trace", str(TRACE), "--gpus", "4", "--slo", "e2el=1s"), "write ttft=1s,tpot=50ms (names: ttft, tpot)"),
        (("--trace", str(TRACE), "--gpus", "4", "--prefill", "3"), "--prefill and --decode must be given together"),
        (("--trace", str(TRACE), "--gpus", "4", "--prefill", "3", "--decode", "2"), "--gpus 4: too few for 5 workers"),
        (("--trace", str(TRACE), "--gpus", "4", "--colocated", "2", "--autoscale"), "not with --autoscale"),
        (("--trace", str(TRACE), "--gpus", "4", "--json", "/nowhere/at/all.json"), "there is no directory"),
        (("--trace", __file__, "--gpus", "4"), "invalid JSON"),
        (("--trace", str(TRACE), "--gpus", "4", "--profile", str(TRACE)), "no JSON"),
        ((), "there is no worker to simulate"),
    ],
)
def test_invalid_options_are_refused_in_one_line(flags: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(main, ["simulate", *flags])
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code > 0
    assert message in " ".join(result.output.split())
