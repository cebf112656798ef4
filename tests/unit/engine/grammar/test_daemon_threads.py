"""Threads for jobs that cannot be interrupted: turns of owners, bounds, replaced threads."""

import threading
from collections.abc import Callable, Iterator
from queue import Queue

import pytest

from baton.engine.errors import QueueFull
from baton.engine.grammar.daemon_threads import DaemonThreads

TIMEOUT_S = 30


class HeldJobs:
    """Jobs that report their start and wait to be released, by name."""

    def __init__(self) -> None:
        self.started: Queue[tuple[str, int]] = Queue()  # with the id of the thread
        self._gates: dict[str, threading.Event] = {}

    def make(self, name: str) -> Callable[[], None]:
        """Return a job."""
        gate = self._gates[name] = threading.Event()

        def job() -> None:
            self.started.put((name, threading.get_ident()))
            assert gate.wait(TIMEOUT_S)

        return job

    def release(self, name: str) -> None:
        """Let a job end."""
        self._gates[name].set()

    def release_all(self) -> None:
        """Let all jobs end, also those that have not started."""
        for gate in self._gates.values():
            gate.set()

    def next(self) -> str:
        """Wait for the next start; returns the name of the job."""
        return self.started.get(timeout=TIMEOUT_S)[0]


@pytest.fixture
def jobs() -> Iterator[HeldJobs]:
    held = HeldJobs()
    yield held
    held.release_all()  # otherwise they would log an error during a later test


def test_a_fault_of_a_job_ends_no_thread() -> None:
    threads, done = DaemonThreads("tests", 1, 10), threading.Event()
    threads.submit(lambda: [].pop())
    threads.submit(done.set)
    assert done.wait(TIMEOUT_S)


def test_owners_take_turns(jobs: HeldJobs) -> None:
    threads = DaemonThreads("tests", 1, 10)
    threads.submit(jobs.make("first"))
    assert jobs.next() == "first"
    for name in ("a1", "a2", "a3", "b1", "b2", "c1"):
        threads.submit(jobs.make(name), name[0])
    jobs.release("first")
    order: list[str] = []
    for _ in range(6):
        order.append(jobs.next())
        jobs.release(order[-1])
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_an_owner_without_a_running_job_is_next(jobs: HeldJobs) -> None:
    threads = DaemonThreads("tests", 2, 10)
    for name in ("a1", "a2"):
        threads.submit(jobs.make(name), "a")
        assert jobs.next() == name
    for name in ("a3", "a4", "b1"):
        threads.submit(jobs.make(name), name[0])
    jobs.release("a1")
    assert jobs.next() == "b1"
    jobs.release("a2")
    assert jobs.next() == "a3"


def test_an_owner_leaves_threads_to_others(jobs: HeldJobs) -> None:
    threads = DaemonThreads("tests", 3, 10, max_running=2)
    for name in ("a1", "a2", "a3", "b1"):
        threads.submit(jobs.make(name), name[0])
    assert {jobs.next() for _ in range(3)} == {"a1", "a2", "b1"}
    jobs.release("b1")
    threads.submit(jobs.make("b2"), "b")
    assert jobs.next() == "b2"
    jobs.release("a2")
    assert jobs.next() == "a3"
    assert jobs.started.empty()


def test_a_replaced_job_counts_as_none_of_its_owner(jobs: HeldJobs) -> None:
    threads = DaemonThreads("tests", 2, 10, max_running=1)
    for name in ("a1", "a2", "b1"):
        threads.submit(jobs.make(name), name[0])
    thread_ids = dict(jobs.started.get(timeout=TIMEOUT_S) for _ in range(2))
    assert thread_ids.keys() == {"a1", "b1"}
    threads.replace(thread_ids["a1"])
    assert jobs.next() == "a2"


def test_a_thread_that_does_not_start_is_not_counted(jobs: HeldJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = DaemonThreads("tests", 1, 10)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda _: [].pop())
        with pytest.raises(IndexError):
            threads.submit(jobs.make("fails"))
    threads.submit(jobs.make("later"))
    assert jobs.next() == "later"


def test_a_replaced_thread_ends_after_its_job(jobs: HeldJobs) -> None:
    threads = DaemonThreads("tests", 1, 10)
    threads.submit(jobs.make("stuck"))
    _, thread_id = jobs.started.get(timeout=TIMEOUT_S)
    [stuck] = [thread for thread in threading.enumerate() if thread.ident == thread_id]
    threads.submit(jobs.make("next"))
    threads.replace(thread_id)
    assert jobs.next() == "next"
    jobs.release("stuck")
    stuck.join(TIMEOUT_S)
    assert not stuck.is_alive()
    jobs.release("next")
    threads.submit(jobs.make("last"))
    assert jobs.next() == "last"


def test_the_queue_is_bounded_and_half_of_it_for_an_owner(jobs: HeldJobs) -> None:
    threads = DaemonThreads("tests", 1, 4)
    threads.submit(jobs.make("runs"))
    jobs.next()
    for name in ("a1", "a2"):
        threads.submit(jobs.make(name), "a")
    with pytest.raises(QueueFull, match="too many jobs of tests are waiting"):
        threads.submit(jobs.make("a3"), "a")
    for name in ("b", "c"):
        threads.submit(jobs.make(name), name)
    with pytest.raises(QueueFull, match="too many jobs of tests are waiting"):
        threads.submit(jobs.make("d"), "d")
    jobs.release("runs")
    assert jobs.next() == "a1"
    threads.submit(jobs.make("d"), "d")
