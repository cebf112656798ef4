"""Arguments of an application."""

from typing import Any

import pytest

from baton.settings.values import OptionError
from tests.unit.deployment.ray.test_ray_settings import settings


@pytest.mark.parametrize("is_section_first", [True, False])
def test_dotted_keys_add_to_a_section_in_any_order(is_section_first: bool) -> None:
    parts: list[dict[str, object]] = [{"router": {"max_inflight": 7}}, {"router.max-queue": "5"}]
    arguments = dict(item for part in parts[:: 1 if is_section_first else -1] for item in part.items())
    assert settings(**arguments).cluster.router == {"max_inflight": 7, "max_queue": 5}


def test_an_empty_section_accepts_dotted_keys() -> None:
    assert settings(**{"router": None, "router.max_queue": 5}).cluster.router == {"max_queue": 5}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"router": {"max-queue": 1}, "router.max_queue": 2},
            "router.max_queue: is set twice, here and in router",
        ),
        (
            {"router.max_queue": 2, "router": {"max_queue": 2}},
            "router.max_queue: is set twice, here and in router",
        ),
        ({"router.max_queue": 2, "router": 3}, "router.max_queue: router is already 3"),
        ({"router": "false", "port": "8000"}, "port: has no effect with `router: false`"),
        ({"router": False, "host": "127.0.0.1"}, "host: has no effect with `router: false`"),
        ({"router": False, "router_processes": 2}, "router_processes: has no effect with `router: false`"),
        ({"router": False, "router_ray": {"num_replicas": 2}}, "router_ray: has no effect with `router: false`"),
        ({"router": False, "router_ray.num_replicas": 2}, "router_ray: has no effect with `router: false`"),
    ],
)
def test_arguments_that_would_be_ignored_are_refused(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(OptionError) as raised:
        settings(**arguments)
    assert expected in str(raised.value)
