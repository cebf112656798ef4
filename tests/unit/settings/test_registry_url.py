"""Registry URLs."""

import pytest

from baton.engine.config import EngineConfig
from baton.settings.registry_url import parse_registry_url
from baton.settings.values import OptionError
from baton.worker.config import WorkerConfig


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis://cache", "redis://cache:6379"),
        ("redis://:secret@10.0.0.1:7000/0", "redis://10.0.0.1:7000"),
        ("rediss://me:s%40cret@cache/3?ssl_ca_certs=/ca.pem", "rediss://cache:6379/3"),
        ("redis://[::1]:7000/1?namespace=blue", "redis://[::1]:7000/1?namespace=blue"),
        ("redis+sentinel://a,b:7001/main/2?sentinel_password=secret", "redis+sentinel://a:26379,b:7001/main/2"),
        ("rediss+sentinel://:secret@a/main", "rediss+sentinel://a:26379/main"),
        ("redis+cluster://:secret@a:7000,b:7001", "redis+cluster://a:7000,b:7001"),
    ],
)
def test_the_text_of_a_url_has_no_secrets(text: str, expected: str) -> None:
    url = parse_registry_url(text)
    assert str(url) == expected
    assert "cret" not in repr(url)


def test_urls_are_parsed() -> None:
    url = parse_registry_url("rediss+sentinel://me:s%40cret@a,[::1]:7001/main/2?sentinel_password=x&ssl_cert_reqs=none")
    assert (url.kind, url.tls, url.hosts) == ("sentinel", True, (("a", 26379), ("::1", 7001)))
    assert (url.username, url.password, url.service, url.db) == ("me", "s@cret", "main", 2)
    assert url.options == {"sentinel_password": "x", "ssl_cert_reqs": "none"}
    assert parse_registry_url("redis://h?namespace=blue").namespace == "blue"
    assert parse_registry_url("redis://h").namespace == "default"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("memcached://h", "a registry's URL starts with redis://"),
        ("h:6379", "a registry's URL starts with redis://"),
        ("redis://", "the URL has no host"),
        ("redis+cluster://a,,b", "the URL has no host"),
        ("redis://:secret@h:port", "the URL cannot be read"),
        ("redis://:sec#ret@h", "the URL cannot be read"),
        ("redis://u:1?sec@h", "the URL cannot be read"),
        ("redis://u:1/sec@h", "the URL cannot be read"),
        ("redis://:secret@h:99999", "the URL cannot be read"),
        ("redis://:secret@h/first", "must be a database number"),
        ("redis+cluster://h/1", "only database 0"),
        ("redis+sentinel://h", "ends with /SERVICE"),
        ("redis://h?ssl_ca_certs=/ca.pem", "ssl_ca_certs: unknown in this URL; known are namespace"),
        ("redis://h?sentinel_password=secret", "sentinel_password: unknown"),
        ("redis://:secret@h?password_file=/p", "either a password or password_file"),
        ("redis://h?password_file=", "password_file: must be a text"),
        ("rediss://h?ssl_cert_reqs=maybe", "must be one of required, optional, none"),
        ("rediss://h?ssl_check_hostname=maybe", "must be one of true, false"),
        ("redis://h?namespace={a}", "without braces"),
        ("redis://h?namespace=", "must be a text"),
    ],
)
def test_an_invalid_url_is_refused_without_showing_its_password(text: str, message: str) -> None:
    with pytest.raises(OptionError) as refusal:
        parse_registry_url(text)
    assert str(refusal.value).startswith("registry: ")
    assert message in str(refusal.value)
    assert "sec" not in str(refusal.value)


def test_a_registered_worker_has_an_address() -> None:
    engine = EngineConfig(model="m")
    with pytest.raises(OptionError, match=r"host: routers cannot reach 0\.0\.0\.0"):
        WorkerConfig(role="decode", worker_id="d", engine=engine, host="0.0.0.0", registry="redis://h")
    with pytest.raises(OptionError, match="registry: a registry's URL starts with"):
        WorkerConfig(role="decode", worker_id="d", engine=engine, registry="http://h")
