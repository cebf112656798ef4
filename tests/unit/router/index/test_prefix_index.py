"""Both indexes, compared with the definition of the longest cached prefix."""

import logging
import random
from collections.abc import Sequence

import pytest

import baton.router.generation
import baton.router.index.prefix_index
from baton.engine.kv.block_hash import BlockHash, hash_blocks
from baton.router.generation import PromptHashes
from baton.router.index.prefix_index import BlockIndex, CompiledIndex, PrefixIndex, create_index
from baton.router.index.python_prefix_index import PythonIndex
from tests.unit.router.rigs.caching_worker import CachingWorker, longest_prefix

NOT_COMPILED = pytest.mark.skipif(CompiledIndex is None, reason="the index was not compiled when this was installed")


@pytest.fixture(params=[pytest.param("compiled", marks=NOT_COMPILED), "python"])
def index(request: pytest.FixtureRequest) -> PrefixIndex:
    return PrefixIndex(PythonIndex if request.param == "python" else create_index)


def pack(hashes: Sequence[bytes]) -> bytes:
    return b"".join(hashes)


def branching_prompts(rng: random.Random, count: int) -> list[list[BlockHash]]:
    """Use an alphabet of two letters, so that most prompts share prefixes."""
    return [hash_blocks([rng.randrange(2) for _ in range(rng.randint(2, 60))], 2) for _ in range(count)]


@pytest.mark.parametrize("seed", range(4))
def test_the_index_equals_brute_force_under_events_gaps_restarts_and_evictions(index: PrefixIndex, seed: int) -> None:
    rng = random.Random(seed)
    prompts = branching_prompts(rng, 60)
    workers = [CachingWorker(f"worker-{number}", rng, prompts) for number in range(5)]
    for _ in range(1_500):
        worker = rng.choice(workers)
        choice = rng.random()
        if choice < 0.02:
            index.reset(worker.incarnation)
            worker.restart()
        elif choice < 0.05:  # events were missed: a snapshot is taken again
            worker.change()
            worker.take_event()
            index.reset(worker.incarnation)
            index.update(worker.incarnation, b"", pack(sorted(worker.cached)))
        else:
            worker.change()
            removed, stored = worker.take_event()
            index.update(worker.incarnation, pack(removed), pack(stored))
        prompt = rng.choice(prompts)
        expected = {each.incarnation: longest_prefix(each.cached, prompt) for each in workers}
        assert index.match(pack(prompt)) == {name: length for name, length in expected.items() if length}
        assert all(index.num_blocks(each.incarnation) == len(each.cached) for each in workers)
    assert sum(worker.num_evicted for worker in workers) > 1_000


def crowded_key(number: int) -> bytes:
    """Many keys share a few first halves, zero among them, so they collide in a few runs of slots."""
    return (number % 7).to_bytes(8, "little") + (number // 7).to_bytes(8, "little")


def test_colliding_keys_are_added_and_removed(index: PrefixIndex) -> None:
    rng = random.Random(1)
    cached: set[bytes] = set()
    for _ in range(300):
        removed = [crowded_key(rng.randrange(700)) for _ in range(rng.randrange(40))]
        stored = [crowded_key(rng.randrange(700)) for _ in range(rng.randrange(40))]
        index.update("a", pack(removed), pack(stored))
        cached = (cached - set(removed)) | set(stored)
        assert index.num_blocks("a") == len(cached)
        for number in rng.sample(range(700), 50):
            assert bool(index.match(crowded_key(number))) == (crowded_key(number) in cached)


def test_a_worker_grows_and_shrinks(index: PrefixIndex) -> None:
    rng = random.Random(2)
    keys = [rng.randbytes(16) for _ in range(20_000)]
    for start in range(0, len(keys), 100):
        index.update("a", b"", pack(keys[start : start + 100]))
        assert index.match(keys[start // 2]) == {"a": 1}
    assert index.num_blocks("a") == len(keys)
    assert all(index.match(key) for key in keys)
    index.update("a", pack(keys[5_000:]), b"")
    assert [bool(index.match(key)) for key in keys] == [True] * 5_000 + [False] * 15_000


@pytest.mark.parametrize("num_workers", [1, 3, 5, 200])
def test_blocks_that_many_workers_hold(index: PrefixIndex, num_workers: int) -> None:
    rng = random.Random(num_workers)
    prompt = [rng.randbytes(16) for _ in range(300)]
    lengths = {f"{number}": rng.randint(0, len(prompt)) for number in range(num_workers)}
    for name, length in lengths.items():
        index.update(name, b"", pack(prompt[:length]))
    assert index.match(pack(prompt)) == {name: length for name, length in lengths.items() if length}
    for name, length in lengths.items():
        lengths[name] = rng.randint(0, length)
        index.update(name, pack(prompt[lengths[name] : length]), b"")
        assert index.num_blocks(name) == lengths[name]
    assert index.match(pack(prompt)) == {name: length for name, length in lengths.items() if length}


def test_many_incarnations_of_many_workers(index: PrefixIndex) -> None:
    """Lost workers are removed while others join, and leave no blocks to later workers."""
    rng = random.Random(4)
    keys = [rng.randbytes(16) for _ in range(3_000)]
    cached: dict[str, set[bytes]] = {}
    for life in range(1_500):
        name = f"{life}"
        cached[name] = set(rng.sample(keys, rng.choice([0, 1, 30, 300])))
        index.update(name, b"", pack(sorted(cached[name])))
        while len(cached) > 30:
            gone = rng.choice(list(cached))
            index.reset(gone)
            del cached[gone]
        for key in rng.sample(keys, 5):
            assert index.match(key) == {name: 1 for name, blocks in cached.items() if key in blocks}
    assert {name: index.num_blocks(name) for name in cached} == {name: len(each) for name, each in cached.items()}


@NOT_COMPILED
def test_blocks_of_lost_workers_are_removed_by_later_events() -> None:
    rng = random.Random(5)
    index = CompiledIndex()
    for life in range(200):
        index.update(f"{life}", b"", rng.randbytes(16 * 1_000))
        index.reset(f"{life}")
    assert index.num_entries < 20_000  # of 200,000 that came
    assert index.num_bytes < 5_000_000


def test_workers_that_leave_do_not_affect_others(index: PrefixIndex) -> None:
    rng = random.Random(3)
    names = [f"{number}" for number in range(60)]
    for name in names:
        index.update(name, b"", bytes([int(name)]) * 16 + b"x" * 16)
    rng.shuffle(names)
    while names:
        index.reset(names.pop())
        assert index.match(b"x" * 16) == dict.fromkeys(names, 1)
        assert all(index.match(bytes([int(name)]) * 16) == {name: 1} for name in names)
    index.reset("never seen")
    assert index.num_blocks("never seen") == 0


def test_a_block_that_left_and_came_in_one_event_is_there(index: PrefixIndex) -> None:
    [block] = hash_blocks([1, 2], 2)
    index.update("a", block, block)
    assert index.match(block) == {"a": 1}


def test_no_blocks_match_nothing(index: PrefixIndex) -> None:
    index.update("a", b"", b"x" * 16)
    assert index.match(b"") == {}


def test_a_truncated_hash_is_an_error_and_changes_nothing(index: PrefixIndex) -> None:
    index.update("a", b"", b"x" * 16)
    with pytest.raises(ValueError, match="17 bytes"):
        index.update("a", b"x" * 16, b"y" * 17)
    with pytest.raises(ValueError, match="17 bytes"):
        index.update("b", b"y" * 17, b"y" * 16)
    with pytest.raises(ValueError, match="15 bytes"):
        index.match(b"x" * 15)
    assert index.match(b"x" * 16) == {"a": 1}
    assert index.match(b"y" * 16) == {}


def test_another_salt_has_no_cache_hits(index: PrefixIndex) -> None:
    tokens = list(range(64))
    index.update("a", b"", pack(hash_blocks(tokens, 16, "one tenant")))
    assert index.match(PromptHashes(tokens, "one tenant").extended(tokens, 16)) == {"a": 4}
    assert index.match(PromptHashes(tokens, "another").extended(tokens, 16)) == {}


def test_the_log_reports_an_index_that_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(baton.router.index.prefix_index, "CompiledIndex", None)
    with caplog.at_level(logging.WARNING):
        index: BlockIndex = create_index()
    assert isinstance(index, PythonIndex)
    assert "not installed" in caplog.text


def test_a_prompt_is_hashed_once_for_all_its_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, output = list(range(21)), [7] * 9
    expected = [pack(hash_blocks([*prompt, *output[:num]], 4, "salt")) for num in range(10)]
    hashes = PromptHashes(prompt, "salt")
    assert hashes.extended(prompt, 8) == pack(hash_blocks(prompt, 8, "salt"))
    assert hashes.extended(prompt, 4) == expected[0]
    num_hashed = 0
    chain_hashes = baton.router.generation.pack_hashes

    def counted(*arguments: object) -> bytes:
        nonlocal num_hashed
        packed = chain_hashes(*arguments)  # type: ignore[arg-type]  # passed on as they come
        num_hashed += len(packed)
        return packed

    monkeypatch.setattr("baton.router.generation.pack_hashes", counted)
    for num in range(10):
        assert hashes.extended([*prompt, *output[:num]], 4) == expected[num]
    assert num_hashed == sum(len(each) - len(expected[0]) for each in expected)
