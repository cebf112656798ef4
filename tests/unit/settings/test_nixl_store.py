"""URLs of KV stores behind NIXL."""

import pytest

from baton.settings.nixl_store import NixlStoreUrl, parse_nixl_store
from baton.settings.store_directory import store_directory
from baton.settings.values import OptionError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nixl-posix:///a%20b", NixlStoreUrl("POSIX", "/a b", {})),
        ("nixl-posix://localhost/a?use_uring=true", NixlStoreUrl("POSIX", "/a", {"use_uring": "true"})),
        ("nixl-gds:///a", NixlStoreUrl("GDS", "/a", {})),
        ("nixl-gds-mt:///a?thread_count=8", NixlStoreUrl("GDS_MT", "/a", {"thread_count": "8"})),
        ("nixl-obj://bucket", NixlStoreUrl("OBJ", "", {"bucket": "bucket"})),
        ("nixl-obj://b/x/y/?region=r", NixlStoreUrl("OBJ", "x/y", {"region": "r", "bucket": "b"})),
        ("nixl-other:///a", None),
        ("s3://bucket", None),
        ("/a", None),
    ],
)
def test_the_scheme_names_the_plugin_and_the_query_its_parameters(url: str, expected: NixlStoreUrl | None) -> None:
    assert parse_nixl_store(url) == expected
    if expected is not None:
        assert store_directory(url) == (expected.path if expected.is_directory else None)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nixl-posix://", "a nixl-posix:// URL is nixl-posix:///PATH"),
        ("nixl-posix://host/a", "a nixl-posix:// URL is nixl-posix:///PATH"),
        ("nixl-gds:///a#b", "a nixl-gds:// URL is nixl-gds:///PATH"),
        ("nixl-posix:///a%00b", "a nixl-posix:// URL is nixl-posix:///PATH"),
        ("nixl-obj:///a", r"a nixl-obj:// URL is nixl-obj://BUCKET\[/PREFIX\]"),
        ("nixl-obj://[", "a nixl-obj:// URL is nixl-obj://BUCKET"),
        ("nixl-obj://id:topsecret@bucket", "credentials of S3 belong into the environment"),
        ("nixl-obj://bucket?secret_key=topsecret", "credentials of S3 belong into the environment"),
    ],
)
def test_errors_say_what_is_possible(url: str, message: str) -> None:
    with pytest.raises(OptionError, match=f"^KV store: {message}") as caught:
        parse_nixl_store(url)
    assert "topsecret" not in str(caught.value)
