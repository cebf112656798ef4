"""What `baton serve --ray` refuses, without Ray."""

from pathlib import Path

import pytest
import yaml

from baton.cli.serve_ray import read_settings
from baton.rpc.option_values import OptionError


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"router": False}, "router: `baton serve` has one"),
        ({"router_ray": {"num_replicas": 2}}, "router_ray.num_replicas: `baton serve` has one router"),
        (
            {"decode_ray": {"autoscaling": {"min_replicas": 1, "max_replicas": 2}}},
            "decode_ray.autoscaling: .* fixed sizes",
        ),
    ],
)
def test_what_one_machine_cannot_have_is_named(content: dict[str, object], told: str, tmp_path: Path) -> None:
    file = tmp_path / "baton.yaml"
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(OptionError, match=told):
        read_settings(file, {}, None)


def test_a_ray_elsewhere_needs_a_registry() -> None:
    with pytest.raises(OptionError, match="registry: with --ray-address"):
        read_settings(None, {}, "auto")
