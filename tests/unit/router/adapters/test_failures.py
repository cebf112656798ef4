"""Failures to load adapters: when they are tried again, and how long they are kept."""

from baton.router.adapters.failures import FIRST_WAIT_S, LAST_WAIT_S, LoadFailures


def test_waits_grow_with_the_same_reason() -> None:
    now_s = 0.0
    failures = LoadFailures(lambda: now_s)
    assert failures.note("sql", "no file")
    assert failures.reason("sql") == "no file"
    for _ in range(20):
        now_s += LAST_WAIT_S
        assert failures.reason("sql") is None
        assert failures.last_reason("sql") == "no file"
        assert not failures.note("sql", "no file")
    now_s += LAST_WAIT_S / 2
    assert failures.reason("sql") == "no file"
    assert failures.note("sql", "another reason")
    now_s += FIRST_WAIT_S
    assert failures.reason("sql") is None


def test_failures_of_workers_that_have_ended_are_forgotten() -> None:
    now_s = 0.0
    failures = LoadFailures(lambda: now_s)
    for name, incarnation in (("a", "w/1"), ("a", "w/2"), ("module", ""), ("a", "")):
        failures.note(name, "reason", incarnation)
    now_s = FIRST_WAIT_S / 2
    failures.clean({"w/2"}, {"module"})
    assert [failures.reason("a", each) for each in ("w/1", "w/2", "")] == [None, "reason", "reason"]
    now_s = LAST_WAIT_S
    failures.clean({"w/2"}, {"module"})
    assert (failures.last_reason("module"), failures.last_reason("a")) == ("reason", None)
    failures.forget("module")
    assert failures.last_reason("module") is None
