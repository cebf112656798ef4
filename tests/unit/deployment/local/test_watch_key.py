"""The temporary key with which a cluster queries its own router, if the router requires keys."""

import pytest

from baton.deployment.local.cluster_config import load_settings
from baton.deployment.local.router_view import with_watch_key
from baton.router.auth.api_key import hidden
from baton.router.config import RouterConfig


@pytest.mark.parametrize("flags", [{}, {"api_key": ""}])
def test_a_router_without_keys_gets_no_watch_key(flags: dict[str, str]) -> None:
    settings = load_settings(None, flags)
    assert with_watch_key(settings) == (settings, None)


@pytest.mark.parametrize(
    ("flags", "given"),
    [
        ({"api_key": "sk-a,sk-b"}, ("sk-a", "sk-b")),
        ({"api_keys_file": "/etc/keys.yaml"}, ()),
        ({"admin_api_key": "sk-a"}, ()),
    ],
)
def test_a_router_with_keys_gets_the_digest_of_one_more(flags: dict[str, str], given: tuple[str, ...]) -> None:
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
def test_operations_are_protected_on_addresses_beyond_loopback(
    host: str, options: dict[str, object], protected: bool
) -> None:
    assert RouterConfig(model="m", host=host, **options).protects_operations is protected  # type: ignore[arg-type]
