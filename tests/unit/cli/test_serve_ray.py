"""Refusals and messages of `baton serve --ray`, without Ray."""

from pathlib import Path

import pytest
import yaml

from baton.cli.options.model_source import BUNDLED
from baton.cli.serve_ray import plan_serving, read_settings
from baton.deployment.local.ports import free_ports
from baton.engine.execution.visible_gpus import VisibleGpus
from baton.settings.values import OptionError

NO_GPU = VisibleGpus(0, "the nodes of this Ray cluster have no GPUs")
FOUR_GPUS = VisibleGpus(4, "the nodes of this Ray cluster have 4 GPUs")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"router": False}, "router: `baton serve` needs a router"),
        ({"router_ray": {"num_replicas": 2}}, "router_ray.num_replicas: must be 1: `baton serve` has one router"),
        (
            {"decode_ray": {"autoscaling": {"min_replicas": 1, "max_replicas": 2}}},
            "decode_ray.autoscaling: .* fixed sizes",
        ),
    ],
)
def test_options_for_several_machines_are_refused(content: dict[str, object], expected: str, tmp_path: Path) -> None:
    file = tmp_path / "baton.yaml"
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(OptionError, match=expected):
        read_settings(file, {}, None, NO_GPU)


def test_ray_address_needs_a_registry() -> None:
    with pytest.raises(OptionError, match="registry: --ray-address needs --registry"):
        read_settings(None, {}, "auto", NO_GPU)


@pytest.mark.parametrize("gpus", [NO_GPU, FOUR_GPUS])
def test_the_reason_for_the_device_is_the_result_of_auto(tmp_path: Path, gpus: VisibleGpus) -> None:
    flags = {"port": free_ports("127.0.0.1", 1)[0], "registry": "redis://cache:6379/0", "tokenizer": str(BUNDLED)}
    settings = read_settings(None, flags, "10.0.0.1:6379", gpus)
    assert settings.num_gpus("decode") == (1 if gpus.count else 0)
    serving = plan_serving(settings, "10.0.0.1:6379", tmp_path, "info", gpus)
    assert serving.banner.devices == f"{gpus.auto_device} (auto: {gpus.reason})"
    assert serving.settings.cluster.cluster.tokenizer == serving.plan.router.tokenizer == str(BUNDLED)
