"""Stores by their URLs."""

import sys
from functools import partial
from pathlib import Path

import pytest

from baton.extras import MissingExtra
from baton.kvtransfer.store import factory
from baton.kvtransfer.store.directory import DirectoryStore
from baton.kvtransfer.store.factory import open_host_store, open_source, open_store
from baton.kvtransfer.store.redis_store import RedisStore
from baton.kvtransfer.store.s3_store import S3Store
from baton.kvtransfer.store.sealed import SealedStore
from baton.kvtransfer.store.shared_memory_directory import shared_memory_directory
from baton.kvtransfer.store.store import StoreUnavailable
from baton.settings.values import OptionError
from tests.unit.kvtransfer.store.store_rig import NAMESPACE, read, write

CAPACITY = 1 << 20


@pytest.mark.parametrize("prefix", ["", "file://", "file://localhost"])
def test_a_directory(tmp_path: Path, prefix: str) -> None:
    store = open_store(f"{prefix}{tmp_path}", NAMESPACE, CAPACITY, name="shared")
    assert isinstance(store, DirectoryStore)
    write(store, 0)
    assert (tmp_path / "baton-kv" / NAMESPACE).is_dir()
    assert (store.name, store.use().capacity_bytes) == ("shared", CAPACITY)
    assert open_store(str(tmp_path), NAMESPACE, CAPACITY).name == "disk"


def test_a_file_url_is_unquoted_and_a_path_is_not(tmp_path: Path) -> None:
    for name in ("a b", "a%20b"):
        (tmp_path / name).mkdir()
    open_store(f"file://{tmp_path}/a%20b", NAMESPACE, CAPACITY)
    assert [path.name for path in tmp_path.iterdir() if list(path.iterdir())] == ["a b"]
    open_store(f"{tmp_path}/a%20b", NAMESPACE, CAPACITY)
    assert len([path for path in tmp_path.iterdir() if list(path.iterdir())]) == 2


def test_servers_are_not_contacted_yet() -> None:
    for url in ("redis://nowhere.invalid", "rediss://user:secret@nowhere.invalid:1/2?ssl_check_hostname=false"):
        store = open_store(url, NAMESPACE, CAPACITY, ttl_s=60)
        assert isinstance(store, RedisStore)
        store.close()
    s3 = open_store("s3://bucket/a/b/?endpoint=https://nowhere.invalid:1&region=eu-west-1", NAMESPACE, CAPACITY)
    assert isinstance(s3, S3Store)
    assert str(s3._address) == "s3://bucket/a/b at https://nowhere.invalid:1"
    s3.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "it may be a directory, file:///PATH, redis://HOST"),
        ("memcached://host", "memcached:// is unknown; it may be a directory, file:///PATH, redis://HOST"),
        ("redis+cluster://host", r"redis\+cluster:// is unknown"),
        ("file://host/path", "a file:// URL is file:///PATH"),
        ("file:///a%00b", "a file:// URL is file:///PATH"),
        ("file://", "a file:// URL is file:///PATH"),
        ("file:///path?a=b", "a file:// URL is file:///PATH"),
        ("redis://", "the URL has no host"),
        ("redis://host/db", "the URL's path must be a database number"),
        ("redis://host?ssl_certfile=x", "ssl_certfile: unknown in this URL"),
        ("redis://:top#topsecret@host", "the URL cannot be read; a password's special characters must be"),
        ("s3://", "an s3:// URL is s3://BUCKET"),
        ("s3://[", "an s3:// URL is s3://BUCKET"),
        ("s3://id:topsecret@bucket", "credentials of S3 belong into the environment"),
        ("s3://bucket?secret=x", "secret is unknown in an s3:// URL; known are endpoint, region"),
        ("s3://bucket?region=", "region is empty"),
        ("nixl-posix://host/path", "a nixl-posix:// URL is nixl-posix:///PATH"),
        ("nixl-obj://id:topsecret@bucket", "credentials of S3 belong into the environment"),
        ("s3://bucket?endpoint=host:1", r"the endpoint in an s3:// URL is http://HOST\[:PORT\]"),
    ],
)
def test_errors_say_what_is_possible(url: str, message: str) -> None:
    with pytest.raises(OptionError, match=f"^KV store: {message}") as caught:
        open_store(url, NAMESPACE, CAPACITY)
    assert "\n" not in str(caught.value)
    assert "topsecret" not in str(caught.value)


def test_a_key_file_seals_and_has_a_namespace_of_its_own(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("0123456789abcdef" * 4)
    key_file.chmod(0o600)
    sealed = open_store(str(tmp_path), NAMESPACE, CAPACITY, key_file=key_file)
    assert isinstance(sealed, SealedStore)
    write(sealed, 0)
    assert read(sealed, 0)
    assert not read(open_store(str(tmp_path), NAMESPACE, CAPACITY), 0)
    assert [path.name[:-8] for path in (tmp_path / "baton-kv").glob("[!.]*")] == [f"{NAMESPACE}."]
    with pytest.raises(OptionError, match="cannot be read: No such file"):
        open_store(str(tmp_path), NAMESPACE, CAPACITY, key_file=tmp_path / "missing")


def test_missing_packages_are_named_with_their_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("obstore", "cryptography"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r'a KV store at s3:// needs obstore, .* "baton-serve\[s3\]"'):
        open_store("s3://bucket", NAMESPACE, CAPACITY)
    with pytest.raises(MissingExtra, match=r'with a key file needs cryptography, .* "baton-serve\[encryption\]"'):
        open_store(str(tmp_path), NAMESPACE, CAPACITY, key_file=tmp_path / "key")
    open_store(str(tmp_path), NAMESPACE, CAPACITY)


def test_stores_behind_nixl_name_what_they_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreUnavailable, match=r"OBJ plugin does not start here: .*libcuobjclient\.so\.1"):
        open_store("nixl-obj://bucket/prefix?region=a", NAMESPACE, CAPACITY)
    with pytest.raises(OptionError, match="name the same bucket as s3://"):
        open_source("nixl-obj://bucket/prefix")
    monkeypatch.setitem(sys.modules, "nixl", None)
    with pytest.raises(MissingExtra, match=r'a KV store of NIXL needs nixl, .* "baton-serve\[nixl\]"'):
        open_store(f"nixl-posix://{tmp_path}", NAMESPACE, CAPACITY)


@pytest.fixture
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory instead of /dev/shm, where a start deletes what other tests have left."""
    monkeypatch.setattr(factory, "shared_memory_directory", partial(shared_memory_directory, parent=tmp_path))
    return tmp_path


def test_host_memory_is_shared_and_given_back(shm: Path) -> None:
    first, second = open_host_store(NAMESPACE, CAPACITY), open_host_store(NAMESPACE, CAPACITY, ttl_s=60)
    write(first, 0)
    first.close()
    assert read(second, 0)
    assert (second.name, second.use().capacity_bytes) == ("host", CAPACITY)
    second.close()
    assert list(shm.iterdir()) == []


def test_host_memory_that_cannot_be_used_is_given_back(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StoreUnavailable("no")

    monkeypatch.setattr("baton.kvtransfer.store.usage.Usage.read", fail)
    with pytest.raises(StoreUnavailable):
        open_host_store(NAMESPACE, CAPACITY)
    assert list(shm.iterdir()) == []
