"""The keys that a router accepts while their file changes."""

import logging
import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from baton.router.auth.api_key import ApiKey, digest_of, hidden, unnamed_key
from baton.router.auth.cache_secret import CacheSecret
from baton.router.auth.client import Client, KeyRing
from baton.router.auth.keys_file import InvalidKeysFile, KeysFile
from baton.router.errors import KeyLimitReached
from tests.unit.router.api_keys import TestKeys

SECRET = "of all routers in this test"


class Ring:
    """A ring with a file and a test clock."""

    def __init__(
        self, keys: TestKeys, *fixed: ApiKey, shared_cache: bool = False, file: KeysFile | None = None
    ) -> None:
        self.now_s = 0.0
        secret = None if shared_cache else CacheSecret(SECRET)
        self.ring = KeyRing(fixed, file or KeysFile(str(keys.path)), secret, lambda: self.now_s)

    def find(self, key: str) -> Client | None:
        return self.ring.find(digest_of(key.encode()))

    def name(self, key: str) -> str | None:
        """Return the name of the found key."""
        client = self.find(key)
        return client.key.name if client is not None and client.key is not None else None


def test_keys_are_added_and_removed(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    first = keys.add("first")
    ring = Ring(keys, unnamed_key(hidden("from the command line")))
    second = keys.add("second")
    assert (ring.name(first), ring.name(second), ring.name("other")) == ("first", None, None)
    ring.now_s = 1.0
    assert (ring.name(first), ring.name(second)) == ("first", "second")
    keys.remove("first")
    ring.now_s = 1.9
    assert ring.name(first) == "first"
    ring.now_s = 2.0
    assert (ring.name(first), ring.name(second)) == (None, "second")
    assert (ring.name("from the command line") or "").startswith("key-")
    assert len(ring.ring) == 2


def test_a_damaged_or_missing_file_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = TestKeys(tmp_path)
    key = keys.add("a")
    ring = Ring(keys)
    keys.replace("keys: [sk-secret")
    for second in range(1, 5):
        ring.now_s = second
        assert ring.name(key) == "a"
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "the API keys are unchanged" in caplog.text
    assert "secret" not in caplog.text
    keys.path.unlink()
    ring.now_s = 5.0
    assert ring.name(key) == "a"
    keys.entries = []
    other = keys.add("b")
    ring.now_s = 6.0
    assert (ring.name(key), ring.name(other)) == (None, "b")


class HungFile(KeysFile):
    """A file on a mount that hangs, played by a FIFO without a writer, and later responds."""

    def __init__(self, keys: TestKeys) -> None:
        super().__init__(str(keys.path))
        self.fifo = keys.path.with_name("fifo")
        self.num_checks = 0

    def has_changed(self) -> bool:
        self.num_checks += 1
        if self.fifo.exists():
            self.fifo.open("rb").close()
        return super().has_changed()

    def respond(self) -> None:
        """End the check that waits, and let later ones pass."""
        descriptor = os.open(self.fifo, os.O_WRONLY)
        self.fifo.unlink()
        os.close(descriptor)
        for thread in threading.enumerate():
            if thread.name == "check of API keys":
                thread.join(10)


def test_a_mount_that_hangs_leaves_the_keys_unchanged_until_it_responds(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    ring = Ring(keys, file=(file := HungFile(keys)))
    key = keys.add("a")
    ring.now_s = 1.0
    assert ring.name(key) == "a"
    os.mkfifo(file.fifo)
    keys.remove("a")
    for second in range(2, 12):
        ring.now_s = second
        assert ring.name(key) == "a"
    assert file.num_checks == 2  # the second hangs, and no other begins
    file.respond()
    assert ring.name(key) is None


def test_a_fifo_in_place_of_the_file_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = TestKeys(tmp_path)
    key = keys.add("a")
    ring = Ring(keys)
    os.mkfifo(tmp_path / "fifo")
    os.replace(tmp_path / "fifo", keys.path)
    for second in range(1, 5):
        ring.now_s = second
        assert ring.name(key) == "a"
    assert [record.message for record in caplog.records] == [
        f"the API keys are unchanged: cannot read {keys.path}: it is not a regular file"
    ]
    keys.remove("a")
    ring.now_s = 5.0
    assert ring.name(key) is None


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let this process open no file in the context."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_key_removed_while_no_file_can_be_opened_is_refused_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = TestKeys(tmp_path)
    key = keys.add("a")
    ring = Ring(keys)
    keys.remove("a")
    with no_descriptors():
        for second in range(1, 4):
            ring.now_s = second
            assert ring.name(key) == "a"
    assert [record.message for record in caplog.records] == [
        f"the API keys are unchanged: cannot read {keys.path}: Too many open files"
    ]
    ring.now_s = 4.0
    assert ring.name(key) is None
    keys.add("b")
    with no_descriptors():
        ring.now_s = 5.0
        ring.name(key)
    assert len(caplog.records) == 2  # the file that cannot be read is another one


def test_a_damaged_file_at_start_is_an_error(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    keys.replace("keys: [")
    with pytest.raises(InvalidKeysFile, match="is not YAML"):
        Ring(keys)
    keys.path.unlink()
    with pytest.raises(InvalidKeysFile, match="cannot read"):
        Ring(keys)


def test_an_expired_key_is_rejected(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    old, new = keys.add("old", expires="2020-01-01T00:00:00Z"), keys.add("new", expires="2999-01-01T00:00:00Z")
    ring = Ring(keys)
    assert (ring.name(old), ring.name(new)) == (None, "new")


def test_a_key_expires_while_the_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = TestKeys(tmp_path)
    key = keys.add("a", expires="2999-01-01T00:00:00Z")
    ring = Ring(keys)
    assert ring.name(key) == "a"
    monkeypatch.setattr(time, "time", lambda: 40_000_000_000.0)
    assert ring.name(key) is None


def test_counts_continue_after_the_file_is_reloaded(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    key = keys.add("a", requests_per_minute=1)
    ring = Ring(keys)
    client = ring.find(key)
    assert client is not None
    client.begin()
    keys.change("a", priority=5)
    ring.now_s = 1.0
    client = ring.find(key)
    assert client is not None
    assert [client.priority(wanted) for wanted in (-1, 0, 2)] == [5, 5, 7]
    with pytest.raises(KeyLimitReached):
        client.begin()
    keys.change("a", requests_per_minute=10)
    ring.now_s = 2.0
    client = ring.find(key)
    assert client is not None
    client.begin()


async def test_counts_continue_if_one_version_of_the_file_lacks_the_key(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    key = keys.add("a", max_inflight=1, requests_per_minute=1)
    complete = keys.path.read_text()
    ring = Ring(keys)

    def lose_and_restore() -> Client:
        keys.replace("keys: []")
        ring.now_s += 1
        assert ring.find(key) is None
        keys.replace(complete)
        ring.now_s += 1
        client = ring.find(key)
        assert client is not None
        return client

    client = ring.find(key)
    assert client is not None
    async with client.hold(1):
        with pytest.raises(KeyLimitReached, match="1 completions in flight"):
            await lose_and_restore().hold(1).__aenter__()
    client = lose_and_restore()
    async with client.hold(1):
        client.begin()
    with pytest.raises(KeyLimitReached, match="used up its 1 requests"):
        lose_and_restore().begin()
    ring.now_s += 60
    lose_and_restore().begin()


def test_salts_differ_between_tenants_and_agree_within_scopes(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    given = [keys.add("a"), keys.add("b", cache_salt="team"), keys.add("c", cache_salt="team"), keys.add("team")]
    salts = [client.cache_salt("") for client in map(Ring(keys).find, given) if client is not None]
    assert salts[1] == salts[2]
    assert len(set(salts)) == 3
    own = [client.cache_salt("mine") for client in map(Ring(keys).find, given) if client is not None]
    assert own[1] == own[2]
    assert len({*own, *salts}) == 6
    shared = [client.cache_salt("x") for client in map(Ring(keys, shared_cache=True).find, given) if client is not None]
    assert shared == ["x"] * 4
    for shared_cache in (False, True):
        tenants = [client.tenant_id for client in map(Ring(keys, shared_cache=shared_cache).find, given) if client]
        assert tenants[1] == tenants[2]
        assert len(set(tenants)) == 3


def test_a_command_line_key_has_the_same_name_at_every_router() -> None:
    key = unnamed_key(hidden("secret"))
    assert key == unnamed_key(hidden(hidden("secret")))
    assert key.digest == digest_of(b"secret")
    assert key.digest.hex()[:8] not in key.name


def test_a_key_is_found_by_its_name_while_it_exists(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    old = keys.add("a", max_inflight=1)
    keys.add("expired", expires="2020-01-01T00:00:00Z")
    ring = Ring(keys)
    found = ring.ring.named("a")
    assert found is not None
    assert found == ring.find(old)
    assert ring.ring.named("expired") is None
    assert ring.ring.named("b") is None
    keys.remove("a")
    new = keys.add("a", max_inflight=5)  # the same tenant has a new key
    ring.now_s += 2
    assert ring.ring.named("a") == ring.find(new) != found
    keys.remove("a")
    ring.now_s += 2
    assert ring.ring.named("a") is None
