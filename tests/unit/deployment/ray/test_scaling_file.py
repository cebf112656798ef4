"""Settings in a file that changes while the policy runs."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton.deployment.autoscaling.settings import SLO, ScalingSettings
from baton.deployment.ray.scaling_options import ScalingFile, logger, read_options, read_settings

GIVEN = {"budget_gpus": 8, "turn_s": 60.0}
LogLines = Callable[[], list[str]]


@pytest.fixture
def log_lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogLines]:
    """Return the logged lines; Serve's logger, once it is set up, does not propagate."""
    monkeypatch.setattr(logger, "propagate", False)
    with caplog.at_level(logging.INFO, logger=logger.name):
        logger.addHandler(caplog.handler)
        yield lambda: caplog.messages
        logger.removeHandler(caplog.handler)


def test_settings_follow_the_file(tmp_path: Path, log_lines: LogLines) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("slo: {ttft_s: 2}\n")
    file = ScalingFile(path, GIVEN, read_settings)
    first = file.read()
    assert first == ScalingSettings(budget_gpus=8, turn_s=60.0, slo=SLO(ttft_s=2.0))
    assert file.read() is first
    path.write_text("slo: {ttft_s: 3}\nbudget_gpus: 6\n")
    assert file.read() == ScalingSettings(budget_gpus=6, turn_s=60.0, slo=SLO(ttft_s=3.0))
    path.write_text("")
    assert file.read() == ScalingSettings(budget_gpus=8, turn_s=60.0)
    assert log_lines() == [f"read new settings from {path}"] * 2


def test_a_swapped_directory_is_followed(tmp_path: Path) -> None:
    """Like Kubernetes' mounted ConfigMaps: the file is a link through a link to a directory."""
    for name, text in (("old", "budget_gpus: 4"), ("new", "budget_gpus: 6")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "settings.yaml").write_text(text)
    (tmp_path / "data").symlink_to("old")
    (tmp_path / "settings.yaml").symlink_to("data/settings.yaml")
    file = ScalingFile(tmp_path / "settings.yaml", {}, read_settings)
    assert file.read().budget_gpus == 4
    (tmp_path / "data-next").symlink_to("new")
    os.replace(tmp_path / "data-next", tmp_path / "data")
    assert file.read().budget_gpus == 6


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("slo: {ttft: 3}", "slo.ttft: unknown option"),
        ("budget_gpus: 1", "the smallest pools need 2"),
        ("registry: redis://cache", "registry: unknown option"),
        ("slo: {", "is not YAML"),
        (None, "cannot read"),
    ],
)
def test_an_invalid_file_keeps_the_settings_and_is_logged_once(
    tmp_path: Path, log_lines: LogLines, text: str | None, why: str
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("slo: {ttft_s: 2}")
    file = ScalingFile(path, GIVEN, read_settings)
    first = file.read()
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    assert file.read() is file.read() is first
    [line] = log_lines()
    assert line.startswith(f"keeping the previous settings: {path}: ")
    assert why in line
    path.write_text("slo: {ttft_s: 4}")
    assert file.read().slo.ttft_s == 4


def test_a_policy_reads_its_settings_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("budget_gpus: 4")
    options = read_options({"registry": "redis://cache", "settings_file": str(path), "idle_s": 60.0})
    assert options.settings == ScalingSettings(budget_gpus=4, idle_s=60.0)
    assert options.file is not None
    assert options.file.read() is options.settings
    path.write_text("flip_s: 1")
    with pytest.raises(ValueError, match="budget_gpus"):
        read_options({"registry": "redis://cache", "settings_file": str(path)})


def test_a_file_must_match_the_clusters_pods(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("budget_gpus: 6")
    pods = {"labels": {"app": "a"}, "gpus_per_pod": 2}
    options = read_options(
        {"registry": "redis://cache", "settings_file": str(path), "kubernetes": {"prefill": pods, "decode": pods}}
    )
    assert options.file is not None
    path.write_text("budget_gpus: 6\nprefill: {gpus_per_replica: 3}")
    assert options.file.read() is options.settings  # replicas of three GPUs on pods of two
