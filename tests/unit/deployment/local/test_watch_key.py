"""The key with which a cluster asks its own router, where the router asks for keys at all."""

import pytest

from baton.deployment.local.cluster_config import load_settings
from baton.deployment.local.router_view import with_watch_key
from baton.router.auth.api_key import hidden
from baton.router.config import RouterConfig


@pytest.mark.parametrize("flags", [{}, {"api_key": ""}])
def test_a_router_without_keys_stays_as_it_is(flags: dict[str, str]) -> None:
    settings = load_settings(None, flags)
    assert with_watch_key(settings) == (settings, None)


@pytest.mark.parametrize(
    ("flags", "given"), [({"api_key": "sk-a,sk-b"}, ("sk-a", "sk-b")), ({"api_keys_file": "/etc/keys.yaml"}, ())]
)
def test_a_router_with_keys_takes_one_more_and_knows_its_digest_alone(
    flags: dict[str, str], given: tuple[str, ...]
) -> None:
    settings, key = with_watch_key(load_settings(None, flags))
    assert key is not None
    assert settings.router["api_key"] == (*given, hidden(key))
    assert key not in repr(settings)


@pytest.mark.parametrize(
    ("host", "options", "protected"),
    [
        ("127.0.0.1", {"api_key": ("a",)}, False),
        ("localhost", {"api_key": ("a",)}, False),
        ("::1", {"api_keys_file": "f"}, False),
        ("0.0.0.0", {"api_key": ("a",)}, True),
        ("::", {"api_keys_file": "f"}, True),
        ("10.0.0.7", {"api_key": ("a",)}, True),
        ("10.0.0.7", {}, False),
        ("10.0.0.7", {"api_key": ("a",), "protect_operations": False}, False),
        ("127.0.0.1", {"api_key": ("a",), "protect_operations": True}, True),
    ],
)
def test_operations_are_protected_where_other_machines_come(
    host: str, options: dict[str, object], protected: bool
) -> None:
    assert RouterConfig(model="m", host=host, **options).protects_operations is protected  # type: ignore[arg-type]
