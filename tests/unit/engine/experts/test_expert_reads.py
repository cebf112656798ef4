"""Ranks whose checkpoint files are missing, hang or are slow: a joining rank still gets its experts."""

import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton.engine.checkpoint.weights import Weights
from baton.engine.errors import EngineError
from baton.engine.experts import group as expert_group
from baton.engine.experts import rebalance as expert_rebalance
from baton.engine.experts.group import BalanceSettings, ExpertGroup
from baton.engine.experts.layer import ExpertLayer
from baton.engine.experts.rebalance import Slots
from baton.engine.layers import experts as expert_layers
from baton.engine.layers.experts import Expert, GroupedWeights, PreparedExperts
from baton.engine.parallel.rank_group import RankGroup
from tests.checkpoints import make_checkpoint
from tests.unit.engine.experts.test_expert_group import alone, make_requests
from tests.unit.engine.group_rig import TIMEOUT_S, Rank, Ranks

FILE = "model.safetensors"
FAILURE = "rebalancing the experts failed; keeping the current placement"
NUM_LAYERS, NUM_EXPERTS = 3, 8
EXACT = {"dtype": "float32", "enable_prefix_caching": False}  # repeated requests are computed like the first ones


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("mixtral", tmp_path_factory.mktemp("mixtral") / "model")


@pytest.fixture
def own(mixtral: Path, tmp_path: Path) -> Path:
    """A rank's own copy of the files."""
    return shutil.copytree(mixtral, tmp_path / "own")


@pytest.fixture
def group(mixtral: Path, own: Path) -> Iterator[Ranks]:
    """One rank that has all experts; a second one will have its own files."""
    made = Ranks(mixtral, ["rank-0"], models={"rank-1": own}, **EXACT)
    yield made
    made.close()


@pytest.fixture
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry failed reads after 4 steps."""
    monkeypatch.setattr(expert_group, "RETRY_STEPS", 4)


def weights_of(experts: ExpertGroup) -> Weights:
    return experts.layers[0]._reader._weights


def lose_files(experts: ExpertGroup, directory: Path) -> None:
    """Unmap and hide a rank's files, as after the loss of a network file system."""
    weights_of(experts).close()
    if (directory / FILE).exists():
        (directory / FILE).rename(directory / "gone")


def write_into_files(_: ExpertGroup, directory: Path) -> None:
    """Overwrite a part of the file in place, which also changes what the rank has mapped."""
    with (directory / FILE).open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        file.write(bytes(1000))


def restore_files(directory: Path) -> None:
    (directory / "gone").rename(directory / FILE)


def num_held(group: Ranks) -> list[list[int]]:
    """Return the number of experts of each rank, by layer."""
    return [[len(layer.held) for layer in rank.experts.layers] for rank in group.ranks.values()]


def num_failures(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.message == FAILURE for record in caplog.records)


def serve(group: Ranks, seed: int, model: Path | None = None) -> None:
    """Run requests on rank-0 and check their tokens against those of `model` (default: the model of rank-0)."""
    group["rank-0"].add(*make_requests(seed, 6))
    check(group, seed, model)


def check(group: Ranks, seed: int, model: Path | None = None) -> None:
    """Check the requests' tokens. No others may run at the time: the rows of a product affect each other's bits."""
    group["rank-0"].wait_for_all()
    for rank in group.ranks.values():
        assert rank.failure is None
    expected = alone(model or Path(group["rank-0"].engine.config.model), make_requests(seed, 6), "float32")
    assert {name: group["rank-0"].outputs[name] for name in expected} == expected


@pytest.mark.usefixtures("fast_retries")
def test_a_rank_that_joins_without_files_gets_experts_once_they_exist(
    group: Ranks, own: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group.join("rank-1", on_join=lambda experts: lose_files(experts, own))
    serve_until(group, lambda: num_failures(caplog) > 2)  # after several retries
    assert num_held(group) == [[NUM_EXPERTS] * NUM_LAYERS, [0] * NUM_LAYERS]
    restore_files(own)
    serve_until(group, lambda: num_held(group) == [[NUM_EXPERTS // 2] * NUM_LAYERS] * 2)
    assert num_failures(caplog) < 10


@pytest.mark.usefixtures("fast_retries")
def test_a_joining_rank_gets_experts_even_if_another_cannot_read(
    group: Ranks, own: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group.join("rank-1")
    serve_until(group, lambda: num_held(group)[1] == [NUM_EXPERTS // 2] * NUM_LAYERS)
    group["rank-1"].call(lambda engine: lose_files(group["rank-1"].experts, own)).result(TIMEOUT_S)
    group.join("rank-2")
    serve_until(group, lambda: all(num_held(group)[2]))
    assert num_failures(caplog) == 0  # ranks with enough experts read nothing
    assert all(min(sizes) >= 2 and max(sizes) <= 3 for sizes in zip(*num_held(group), strict=True))


def test_ranks_with_enough_experts_read_nothing_when_another_joins(group: Ranks) -> None:
    """Even though a placement balanced by load would change the experts of every rank."""
    group.join("rank-1")
    serve_until(group, lambda: all(num_held(group)[1]))
    num_read = [weights_of(group[name].experts)._read_bytes for name in ("rank-0", "rank-1")]
    group.join("rank-2")
    serve_until(group, lambda: all(num_held(group)[2]))
    assert num_read == [weights_of(group[name].experts)._read_bytes for name in ("rank-0", "rank-1")]


def test_retries_back_off(
    group: Ranks, own: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expert_group, "RETRY_STEPS", 1)
    monkeypatch.setattr(expert_group, "MAX_DOUBLINGS", 3)
    group.join("rank-1", on_join=lambda experts: lose_files(experts, own))
    waits: list[int] = []  # steps between two attempts
    begin = ExpertGroup._begin_rebalance

    def count(experts: ExpertGroup) -> None:
        if experts is group["rank-0"].experts:
            waits.append(experts._num_steps)
        begin(experts)

    monkeypatch.setattr(ExpertGroup, "_begin_rebalance", count)
    serve_until(group, lambda: len(waits) > 5)
    assert waits[:6] == [1, 2, 4, 8, 8, 8]


@pytest.mark.parametrize("spoil", [lose_files, write_into_files])
def test_a_rank_that_cannot_read_a_lost_expert_ends_and_the_others_go_on(
    group: Ranks, own: Path, spoil: Callable[[ExpertGroup, Path], None]
) -> None:
    group.join("rank-1")
    group.join("rank-2")
    serve_until(group, lambda: all(num_held(group)[2]))
    failing = group["rank-1"]
    failing.call(lambda engine: spoil(failing.experts, own)).result(TIMEOUT_S)
    group["rank-0"].add(*make_requests(1000, 6))
    group.lose("rank-2")
    with pytest.raises(EngineError) as raised:
        failing.wait(lambda _: False)
    text = str(raised.value)
    assert text.startswith("rank 1 of 2 cannot read its share of the experts that no rank has, ")
    assert FILE in text
    del group.ranks["rank-1"]
    group.group.listeners.pop("rank-1")
    group.group.set_members("rank-0")
    check(group, 1000)
    serve(group, 1001)
    assert num_held(group) == [[NUM_EXPERTS] * NUM_LAYERS]


def test_files_deleted_after_the_start_can_still_be_read(tmp_path: Path) -> None:
    """Including files that hold only experts of other ranks."""
    whole = make_checkpoint("qwen3-moe", tmp_path / "whole")
    model = with_one_file_per_tensor(whole, tmp_path / "model")
    group = Ranks(model, ["rank-0", "rank-1"], **EXACT)
    for file in model.glob("*.safetensors"):
        file.unlink()
    group.lose("rank-1")
    serve(group, 1, whole)
    assert num_held(group) == [[NUM_EXPERTS] * NUM_LAYERS]
    group.close()


def with_one_file_per_tensor(checkpoint: Path, directory: Path) -> Path:
    """Copy a checkpoint, with one file per tensor."""
    shutil.copytree(checkpoint, directory, ignore=shutil.ignore_patterns(FILE))
    tensors = load_file(checkpoint / FILE)
    files = {name: f"model-{number}.safetensors" for number, name in enumerate(tensors)}
    for name, file in files.items():
        save_file({name: tensors[name]}, directory / file)
    (directory / f"{FILE}.index.json").write_text(json.dumps({"weight_map": files}))
    return directory


def serve_until(group: Ranks, is_true: Callable[[], bool]) -> None:
    """Run requests and check their tokens until `is_true` returns True."""
    deadline_s = time.monotonic() + TIMEOUT_S
    for seed in itertools.count():
        serve(group, seed)
        if is_true():
            return
        assert time.monotonic() < deadline_s, num_held(group)


class ReadAhead:
    """Counts the layers in which a rank holds new experts in addition to the old ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.worst: dict[RankGroup, int] = {}
        self._new: dict[ExpertLayer, list[int]] = {}
        self._lock = threading.Lock()
        read, place = ExpertLayer.read, ExpertLayer.place

        def note_read(layer: ExpertLayer, wanted: Sequence[int]) -> list[Expert]:
            with self._lock:
                self._new.setdefault(layer, []).extend(expert for expert in wanted if expert not in layer.held)
                of_rank = [new for each, new in self._new.items() if each.exchange.group is layer.exchange.group]
                num_layers = sum(map(bool, of_rank))
                self.worst[layer.exchange.group] = max(num_layers, self.worst.get(layer.exchange.group, 0))
            return read(layer, wanted)

        def note_place(layer: ExpertLayer, slots: Slots, rank: int, experts: PreparedExperts) -> None:
            place(layer, slots, rank, experts)
            with self._lock:
                self._new.pop(layer, None)

        monkeypatch.setattr(ExpertLayer, "read", note_read)
        monkeypatch.setattr(ExpertLayer, "place", note_place)


@contextmanager
def hanging_files(rank: Rank, directory: Path) -> Iterator[None]:
    """Opening a rank's file hangs, as on a network file system, and finally fails.

    Afterwards the file can be read again.
    """
    file = directory / FILE
    rank.call(lambda _: lose_files(rank.experts, directory)).result(TIMEOUT_S)
    os.mkfifo(file)
    try:
        yield
    finally:
        os.close(os.open(file, os.O_RDWR))  # releases a thread that waits in open()
        file.unlink()
        restore_files(directory)


@pytest.fixture
def replicating(mixtral: Path, own: Path) -> Iterator[Ranks]:
    """Two ranks that read each other's experts after 20 steps."""
    settings = BalanceSettings(is_enabled=True, num_redundant=NUM_EXPERTS, step_interval=20)
    made = Ranks(mixtral, ["rank-0", "rank-1"], settings, {"rank-1": own}, **EXACT)
    yield made
    made.close()


def test_a_rank_whose_files_hang_ends_the_migration_for_all_and_a_later_one_succeeds(
    replicating: Ranks, own: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(expert_rebalance, "READ_DEADLINE_S", 0.2)
    with hanging_files(replicating["rank-1"], own):
        before = num_held(replicating)
        serve_until(replicating, lambda: caplog.text.count("keeping the current placement") > 1)
        assert num_held(replicating) == before
        readers = [thread for thread in threading.enumerate() if thread.name == "experts"]
        assert len(readers) <= 3  # the hanging one, its successor, and the other rank's
    monkeypatch.setattr(expert_rebalance, "READ_DEADLINE_S", TIMEOUT_S)
    serve_until(replicating, lambda: num_held(replicating) == [[NUM_EXPERTS] * NUM_LAYERS] * 2)


@pytest.mark.slow
def test_at_most_one_layer_is_read_ahead(
    replicating: Ranks, own: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = replicating["rank-0"], replicating["rank-1"]
    read_ahead = ReadAhead(monkeypatch)
    layer_bytes = NUM_EXPERTS // 2 * sum(weight.nbytes for weight in weights_of_expert(first.experts))
    num_read = weights_of(first.experts)._read_bytes
    with hanging_files(second, own):
        serve_until(replicating, lambda: num_ready(first) > 0)
        for seed in range(3):  # the other rank hangs, and no step waits for it
            serve(replicating, seed)
        assert num_ready(first) == 1
        assert weights_of(first.experts)._read_bytes - num_read == layer_bytes
        assert num_held(replicating) == [[NUM_EXPERTS // 2] * NUM_LAYERS] * 2
    serve_until(replicating, lambda: num_held(replicating) == [[NUM_EXPERTS] * NUM_LAYERS] * 2)
    assert num_failures(caplog) == 1
    assert read_ahead.worst == {first.experts.ranks: 1, second.experts.ranks: 1}


def test_grouped_experts_are_copied_on_the_reading_thread(group: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU in bf16, where the experts of a layer are contiguous."""
    copiers: set[str] = set()
    lay_out = GroupedWeights.of

    def note(slots: Sequence[Expert]) -> GroupedWeights:
        copiers.add(threading.current_thread().name)
        return lay_out(slots)

    monkeypatch.setattr(GroupedWeights, "of", note)
    monkeypatch.setattr(expert_layers, "_is_faster_grouped", lambda _: True)
    group.join("rank-1")
    group["rank-0"].add(*make_requests(1, 30))
    group["rank-0"].wait_for_all()
    assert num_held(group) == [[NUM_EXPERTS // 2] * NUM_LAYERS] * 2
    for rank in group.ranks.values():
        assert all(layer.experts.is_grouped for layer in rank.experts.layers)
    assert copiers == {"experts"}


def test_pending_reads_end_with_their_rank(replicating: Ranks, own: Path) -> None:
    before = reading_threads()
    with hanging_files(replicating["rank-1"], own):
        serve_until(replicating, lambda: num_ready(replicating["rank-0"]) > 0)
        assert len(reading_threads() - before) == 2
    replicating.close()
    for thread in reading_threads() - before:
        thread.join(TIMEOUT_S)
    assert reading_threads() <= before


def num_ready(rank: Rank) -> int:
    """Return the number of layers that the rank has prepared so far; 0 without a rebalance."""
    rebalance = rank.experts._rebalance
    return rebalance.num_ready if rebalance is not None else 0


def weights_of_expert(experts: ExpertGroup) -> list[Tensor]:
    """Return the weights of one expert; all experts have the same sizes."""
    expert = experts.layers[0].experts.slots[0]
    return [expert.gate_up.weight, expert.down.weight]


def reading_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "experts"}
