"""Load estimates: reports, and commands that they do not include."""

import random

import pytest

from baton.protos.worker_pb2 import KVPool, WorkerDescription, WorkerLoad
from baton.router.policy.cluster import WorkerRole
from baton.router.workers.load import LoadEstimate

DESCRIPTION = WorkerDescription(
    worker_id="d", incarnation="d/1", address="host:1", fingerprint="f", block_size=16, max_model_len=4096,
    max_num_seqs=64, pool=KVPool(block_bytes=1 << 19), num_ranks=2,
)  # fmt: skip


def test_a_command_counts_once_before_and_after_the_report_that_includes_it() -> None:
    load = LoadEstimate()
    load.report(WorkerLoad(num_running=2, num_waiting=1, num_queued_tokens=50, num_free_blocks=30), taken=[])
    load.add(1, 100, num_blocks=7)
    assert (load.num_requests, load.num_queued_tokens, load.num_free_blocks) == (4, 150, 23)
    load.report(WorkerLoad(num_running=2, num_queued_tokens=20, num_free_blocks=30), taken=[])  # older than the command
    assert (load.num_requests, load.num_queued_tokens, load.num_free_blocks) == (3, 120, 23)
    load.report(WorkerLoad(num_running=3, num_queued_tokens=90, num_free_blocks=23), taken=[1])
    assert (load.num_requests, load.num_queued_tokens, load.num_free_blocks) == (3, 90, 23)
    load.report(WorkerLoad(num_running=3, num_queued_tokens=30, num_free_blocks=23), taken=[])  # part of it is computed
    assert (load.num_requests, load.num_queued_tokens) == (3, 30)


def test_prompts_for_other_workers_are_counted_separately() -> None:
    load = LoadEstimate()
    load.report(WorkerLoad(num_running=3, num_prefills=2), taken=[])
    load.add(1, 100, is_prefill=True)
    load.add(2, 100)
    assert (load.num_requests, load.num_prefills) == (5, 3)
    assert load.snapshot(DESCRIPTION, WorkerRole.BOTH).recent.count == 1  # what it decodes, of what the router sent
    load.report(WorkerLoad(num_running=5, num_prefills=3), taken=[1, 2])
    assert (load.num_requests, load.num_prefills) == (5, 3)
    load.remove(1)
    load.report(WorkerLoad(num_running=4, num_prefills=2), taken=[])
    assert (load.num_requests, load.num_prefills) == (4, 2)


def test_requests_whose_prompts_come_from_other_workers_are_counted_separately() -> None:
    load = LoadEstimate()
    load.report(WorkerLoad(num_running=3, num_waiting=2, num_receiving=1, num_awaited_blocks=7), taken=[])
    load.add(1, 0, num_blocks=4, is_received=True)
    load.add(2, 100)
    snapshot = load.snapshot(DESCRIPTION, WorkerRole.DECODE)
    assert (snapshot.num_requests, snapshot.num_receiving, snapshot.num_awaited_blocks) == (7, 2, 7)
    load.report(WorkerLoad(num_running=4, num_waiting=3, num_receiving=2), taken=[1, 2])
    assert load.num_receiving == 2
    load.report(WorkerLoad(num_running=5, num_waiting=2, num_receiving=1), taken=[])  # its KV has come
    assert load.num_receiving == 1


def test_a_prompt_for_another_worker_counts_no_longer_once_it_has_ended() -> None:
    load = LoadEstimate()
    for number in (1, 2):
        load.add(number, 100, is_prefill=True)
    load.report(WorkerLoad(num_running=4, num_prefills=3), taken=[1, 2])  # one of them another router's
    load.remove(1)
    assert (load.num_requests, load.num_prefills) == (3, 2)
    load.report(WorkerLoad(num_running=2, num_prefills=1), taken=[])
    assert (load.num_requests, load.num_prefills) == (2, 1)
    load.report(WorkerLoad(), taken=[])  # computed, and its first token is on its way
    assert (load.num_requests, load.num_prefills) == (1, 1)
    load.report(WorkerLoad(num_running=3), taken=[])  # those of other routers, which decode
    assert (load.num_requests, load.num_prefills) == (3, 0)
    load.report(WorkerLoad(num_running=1, num_prefills=1), taken=[])
    load.add(3, 100)
    assert (load.num_requests, load.num_prefills) == (2, 1)
    load.remove(2)
    assert (load.num_requests, load.num_prefills) == (1, 0)


def test_a_request_whose_kv_is_received_counts_as_such_until_its_first_token_or_its_end() -> None:
    load = LoadEstimate()
    for number in (1, 2):
        load.add(number, 0, is_received=True)
    load.report(WorkerLoad(num_running=1, num_waiting=3, num_receiving=3), taken=[1, 2])  # one is another router's
    load.add(3, 0, is_received=True)
    assert load.num_receiving == 4
    load.computed(1)
    assert (load.num_requests, load.num_receiving) == (5, 3)  # it decodes
    load.computed(1)
    load.remove(1)
    assert (load.num_requests, load.num_receiving) == (4, 3)
    load.remove(2)  # cancelled before its first token
    assert (load.num_requests, load.num_receiving) == (3, 2)
    load.computed(3)  # before any report has it
    assert (load.num_requests, load.num_receiving) == (3, 1)
    load.report(WorkerLoad(num_running=2, num_waiting=1, num_receiving=1), taken=[3])
    assert (load.num_requests, load.num_receiving) == (3, 1)
    load.remove(3)
    assert load.num_receiving == 1


def test_an_ended_request_frees_its_place_before_the_next_report() -> None:
    load = LoadEstimate()
    load.add(1, 100)
    load.add(2, 100)
    load.report(WorkerLoad(num_running=5), taken=[1, 2])  # three of them another router's
    load.remove(1)
    assert load.num_requests == 4
    load.add(3, 100)
    assert load.num_requests == 5
    load.report(WorkerLoad(num_running=4), taken=[])  # without the one that ended, nor the new one
    assert load.num_requests == 5
    load.remove(2)
    load.remove(3)
    assert load.num_requests == 3


def test_an_end_included_in_the_report_hides_no_own_request() -> None:
    load = LoadEstimate()
    for number in (1, 2):
        load.add(number, 100)
    load.report(WorkerLoad(num_running=1), taken=[1, 2])  # one has ended, and its last news are on their way
    load.remove(1)
    assert load.num_requests == 1


def test_a_command_that_ended_before_any_report_had_it_is_forgotten() -> None:
    load = LoadEstimate()
    load.report(WorkerLoad(), taken=[])
    load.add(1, 100)
    load.computed(1)
    assert (load.num_requests, load.num_queued_tokens) == (1, 0)
    load.remove(1)
    load.remove(1)
    load.report(WorkerLoad(), taken=[1])
    assert (load.num_requests, load.num_queued_tokens, load.num_own_requests) == (0, 0, 0)


def test_a_worker_that_does_not_count_is_never_below_what_the_router_knows() -> None:
    load = LoadEstimate()
    load.report(WorkerLoad(num_running=2, num_queued_tokens=50))
    load.add(1, 100)
    assert (load.num_requests, load.num_queued_tokens) == (3, 150)
    load.report(WorkerLoad())  # nobody knows whether it includes the command
    assert (load.num_requests, load.num_queued_tokens) == (1, 100)
    load.computed(1)
    assert (load.num_requests, load.num_queued_tokens) == (1, 0)
    load.remove(1)
    assert (load.num_requests, load.num_queued_tokens) == (0, 0)


def test_the_first_report_includes_all_that_had_come() -> None:
    load = LoadEstimate()
    load.add(1, 100)
    load.report(WorkerLoad(num_running=1, num_queued_tokens=80))
    assert load.num_queued_tokens == 100
    load.report(WorkerLoad(num_running=1, num_queued_tokens=60), taken=[])
    assert (load.num_requests, load.num_queued_tokens) == (1, 60)


def test_estimates_equal_the_worker_when_messages_are_late() -> None:
    """Commands arrive in order, reports late: the estimate is what the worker has plus what is in transit."""
    rng = random.Random(5)
    load, sent, at_worker, untold = LoadEstimate(), list[int](), dict[int, int](), list[int]()
    reports: list[tuple[WorkerLoad, list[int]]] = []
    load.report(WorkerLoad(), taken=[])
    for number in range(1, 2000):
        action = rng.random()
        if action < 0.4:
            load.add(number, number % 50)
            sent.append(number)
        elif action < 0.7 and sent:
            arrived = sent.pop(0)
            at_worker[arrived] = arrived % 50
            untold.append(arrived)
        elif action < 0.85:
            reports.append((WorkerLoad(num_waiting=len(at_worker), num_queued_tokens=sum(at_worker.values())), untold))
            untold = []
        elif reports:
            load.report(*reports.pop(0))
    for report in (
        *reports,
        (WorkerLoad(num_waiting=len(at_worker), num_queued_tokens=sum(at_worker.values())), untold),
    ):
        load.report(*report)
    assert load.num_requests == len(at_worker) + len(sent)
    assert load.num_queued_tokens == sum(at_worker.values()) + sum(number % 50 for number in sent)


def test_a_snapshot_is_cached_until_a_change() -> None:
    load = LoadEstimate()
    load.report(
        WorkerLoad(
            num_running=3, num_free_blocks=90, num_blocks=100, prefill_tokens_per_s=1000, decode_step_s=0.5,
            decode_sequence_s=0.25, read_bytes_per_s=1e9, num_prefilled_tokens=5, num_generated_tokens=6,
        ),
        taken=[],
    )  # fmt: skip
    first = load.snapshot(DESCRIPTION, WorkerRole.DECODE)
    assert load.snapshot(DESCRIPTION, WorkerRole.DECODE) is first
    assert (first.worker_id, first.role, first.block_bytes, first.max_num_seqs) == ("d", WorkerRole.DECODE, 1 << 20, 64)
    assert (first.prefill_tokens_per_s, first.decode_step_s, first.decode_sequence_s) == (1000, 0.5, 0.25)
    assert (first.read_bytes_per_s, first.num_tokens_done, first.num_blocks) == (1e9, 11, 100)
    load.add(9, 40, num_blocks=3)
    second = load.snapshot(DESCRIPTION, WorkerRole.DECODE)
    assert (second.num_requests, second.num_queued_tokens, second.num_free_blocks) == (4, 40, 87)
    assert second.recent.at(9) == pytest.approx(1)
    load.remove(9)
    assert load.snapshot(DESCRIPTION, WorkerRole.DECODE).num_requests == 3


def test_adapters_of_own_requests_count_as_loaded_into_slots() -> None:
    load = LoadEstimate()
    load.report(WorkerLoad(resident_adapters=["a"], adapter_load_s=0.2), taken=[])
    load.list_adapters({"a": "d1", "b": "d2"})
    load.add(1, 10, adapter="b")
    found = load.snapshot(DESCRIPTION, WorkerRole.DECODE)
    assert (found.adapters, found.resident_adapters) == ({"a": "d1", "b": "d2"}, {"a", "b"})
    assert found.adapter_load_s == 0.2
    load.remove(1)
    assert load.snapshot(DESCRIPTION, WorkerRole.DECODE).resident_adapters == {"a"}
