"""A store that is skipped while it fails."""

import logging
import threading
from collections.abc import Sequence

import pytest

from baton.kvtransfer.store.breaker import GuardedStore
from baton.kvtransfer.store.store import Key, StoreUnavailable, StoreUse
from tests.unit.kvtransfer.store.store_rig import block_of, key_of

USE = StoreUse(num_blocks=1, num_bytes=2, capacity_bytes=3)


class FakeStore:
    """A store of which reads, writes or both fail or take some time."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.took_s = 0.0
        self.failing: set[str] = set()
        self.calls: list[str] = []
        self.name = "fake"

    def clock(self) -> float:
        return self.now_s

    def _call(self, call: str) -> None:
        self.calls.append(call)
        self.now_s += self.took_s
        if call in self.failing:
            raise StoreUnavailable("it is away")

    def count(self, keys: Sequence[Key]) -> int:
        self._call("count")
        return len(keys)

    def read(self, key: Key, into: memoryview) -> bool:
        self._call("read")
        return True

    def write(self, key: Key, block: memoryview) -> int:
        self._call("write")
        return len(block)

    def clear(self) -> int:
        return 0

    def use(self) -> StoreUse:
        self._call("use")
        return USE

    def close(self) -> None:
        self._call("close")


@pytest.fixture
def fake() -> FakeStore:
    return FakeStore()


@pytest.fixture
def store(fake: FakeStore) -> GuardedStore:
    return GuardedStore(fake, limit_s=1.0, clock=fake.clock)


def read(store: GuardedStore) -> bool | None:
    """Return the result; None: the store failed."""
    try:
        return store.read(key_of(0), memoryview(bytearray(1)))
    except StoreUnavailable:
        return None


def tries(store: GuardedStore, fake: FakeStore, seconds: float, step_s: float) -> list[float]:
    """Return the times, from now on, of the reads that reach the store."""
    started_s, found = fake.now_s, []
    for index in range(round(seconds / step_s)):
        fake.now_s = started_s + index * step_s
        before = len(fake.calls)
        read(store)
        if len(fake.calls) > before:
            found.append(fake.now_s - started_s)
    return found


def test_calls_pass_while_the_store_works(store: GuardedStore, fake: FakeStore) -> None:
    assert store.name == "fake"
    assert store.count([key_of(0)] * 3) == 3
    assert read(store)
    assert store.write(key_of(0), block_of(0)) == 1000
    assert store.use() == USE
    store.close()
    assert fake.calls == ["count", "read", "write", "use", "close"]
    assert (store.num_failures, store.num_recoveries) == (0, 0)


def test_the_pause_doubles_to_a_minute(store: GuardedStore, fake: FakeStore) -> None:
    fake.failing = {"read"}
    assert tries(store, fake, 190, 0.5) == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert store.num_failures == 9
    assert read(store) is False


def test_a_failure_and_a_recovery_are_logged_once(
    store: GuardedStore, fake: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fake.failing = {"read", "count"}
    for seconds in (0, 2, 2, 2, 2):
        fake.now_s += seconds
        assert not read(store)
        assert store.count([key_of(0)]) == 0
    fake.failing = set()
    fake.now_s += 60
    for _ in range(3):
        assert read(store)
    assert [record.getMessage() for record in caplog.records] == [
        "KV store fake: reads fail and are skipped until one succeeds: it is away",
        "KV store fake: reads work again",
    ]
    assert store.num_recoveries == 1
    fake.failing = {"read"}
    assert tries(store, fake, 4, 0.5) == [0, 1, 3]  # the pause is the first one again


def test_reads_go_on_while_writes_fail(store: GuardedStore, fake: FakeStore) -> None:
    fake.failing = {"write"}
    with pytest.raises(StoreUnavailable, match="it is away"):
        store.write(key_of(0), block_of(0))
    assert store.write(key_of(0), block_of(0)) == 0
    assert read(store)
    assert fake.calls == ["write", "read"]
    fake.failing = set()
    fake.now_s += 1
    assert store.write(key_of(0), block_of(0)) == 1000
    assert (store.num_failures, store.num_recoveries) == (1, 1)


def test_a_slow_call_counts_as_a_failure_with_its_result(
    store: GuardedStore, fake: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    fake.took_s = 1.5
    assert read(store)
    assert not read(store)
    assert (store.num_failures, fake.calls) == (1, ["read"])
    assert "a call took 1.5 s" in caplog.text


def test_one_call_tries_while_others_are_skipped(store: GuardedStore, fake: FakeStore) -> None:
    fake.failing = {"read"}
    read(store)
    fake.failing = set()
    fake.now_s += 1
    entered, leave = threading.Event(), threading.Event()
    plain = fake._call

    def wait(call: str) -> None:
        plain(call)
        entered.set()
        assert leave.wait(30)

    fake._call = wait  # type: ignore[method-assign]  # the call in progress
    thread = threading.Thread(target=read, args=(store,))
    thread.start()
    assert entered.wait(30)
    assert not read(store)
    leave.set()
    thread.join()
    assert read(store)
    assert store.num_recoveries == 1


def test_failures_of_calls_that_were_in_progress_do_not_lengthen_the_pause(
    store: GuardedStore, fake: FakeStore
) -> None:
    fake.failing = {"read"}
    plain = fake._call

    def fail_twice(call: str) -> None:
        fake._call = plain  # type: ignore[method-assign]  # a second call, while the first is in progress
        assert read(store) is None
        plain(call)

    fake._call = fail_twice  # type: ignore[method-assign]
    assert read(store) is None
    assert store.num_failures == 2
    fake.calls.clear()
    assert tries(store, fake, 2, 0.5) == [1]


def test_an_unexpected_error_passes_and_does_not_end_the_tries(store: GuardedStore, fake: FakeStore) -> None:
    def fail(call: str) -> None:
        raise KeyError(call)

    plain, fake._call = fake._call, fail  # type: ignore[method-assign]  # a defect
    with pytest.raises(KeyError):
        read(store)
    fake._call = plain  # type: ignore[method-assign]
    fake.now_s += 1
    assert read(store)
