"""Experts spread over ranks: the same bits as on one rank, for any work of other ranks and membership changes."""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import UnsupportedModel
from baton.engine.experts.group import BalanceSettings, ExpertGroup
from baton.engine.layers.experts import ROW_TILE
from baton.engine.layers.linear import Linear
from baton.engine.outputs import SampledToken
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.marks import each_value, slow_case
from tests.unit.engine.group_rig import CPU, HOST, TIMEOUT_S, Group, Member, Ranks

Outputs = dict[str, list[SampledToken]]
Groups = Callable[..., Ranks]


OTHER_MODELS = (
    *("granite-moe", "glm4-moe", "ernie-moe", "minimax-m2", "olmoe", "glm4-moe-lite", "llama4"),
    *("qwen3.5-moe", "granite-hybrid-moe", "nemotron-h-moe"),
)


@pytest.fixture(
    scope="module",
    params=["mixtral", "qwen3-moe", "deepseek-v3", "qwen2-moe", "gpt-oss", "qwen3-next", *map(slow_case, OTHER_MODELS)],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(request.param, tmp_path_factory.mktemp(request.param) / "model")


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("mixtral", tmp_path_factory.mktemp("mixtral") / "model")


@pytest.fixture
def groups() -> Iterator[Groups]:
    """Factory of groups that are closed after the test."""
    made: list[Ranks] = []

    def make(*args: Any, **kwargs: Any) -> Ranks:
        made.append(Ranks(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def held(group: Ranks) -> list[tuple[int, ...]]:
    """Return the first layer's experts on each rank."""
    return [rank.engine.group.layers[0].held for rank in group.ranks.values() if rank.engine.group is not None]


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def make_request(name: str, seed: int, num_prompt: int, num_output: int) -> Request:
    prompt = random.Random(seed).choices(range(3, VOCAB_SIZE), k=num_prompt)
    sampling = SamplingParams(temperature=0.8, seed=seed, max_tokens=num_output, ignore_eos=True, logprobs=2)
    return Request(RequestId(name), prompt, num_prompt, sampling)


def make_requests(seed: int, count: int) -> list[Request]:
    draw = random.Random(seed)
    return [
        make_request(f"{seed}-{index}", draw.randrange(1 << 30), draw.choice((1, 3, 17, 64, 130)), draw.randint(1, 12))
        for index in range(count)
    ]


def alone(model: Path, requests: list[Request], dtype: str, **options: Any) -> Outputs:
    """Return one rank's results for these requests. Logprobs are floats of the logits: equal only if all bits are."""
    config = EngineConfig(model=str(model), dtype=dtype, kv_cache_memory_bytes=1 << 21, num_threads=1, **options)
    engine = Engine(config)
    outputs: Outputs = {request.request_id: [] for request in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for each in engine.run(engine.schedule()).outputs:
            if each.sampled is not None:
                outputs[each.request_id].append(each.sampled)
    return outputs


@each_value
@pytest.mark.parametrize(
    ("num_ranks", "dtype"), [(4, "float32"), (2, "bfloat16"), slow_case(2, "float32"), slow_case(4, "bfloat16")]
)
def test_logits_equal_those_of_one_rank_bit_for_bit(model: Path, num_ranks: int, dtype: str, groups: Groups) -> None:
    names = [f"rank-{index}" for index in range(num_ranks)]
    counts = dict(zip(names, (5, 1, 2, 0), strict=False))  # the last of four has nothing, the second is soon done
    group = groups(model, names, dtype=dtype)
    for place, name in enumerate(names):
        group[name].add(*make_requests(place, counts[name]))
    outputs = group.wait_for_all()
    for place, name in enumerate(names):
        expected = alone(model, make_requests(place, counts[name]), dtype)
        assert {request_id: outputs[request_id] for request_id in expected} == expected


def test_each_rank_reads_its_own_experts_only(mixtral: Path, groups: Groups) -> None:
    group = groups(mixtral, ["rank-0", "rank-1", "rank-2"])
    assert held(group) == [(0, 1, 2), (3, 4, 5), (6, 7)]


def test_a_rank_joins_once_all_weights_but_its_experts_are_loaded(mixtral: Path) -> None:
    rig = Group()
    rig.set_members("rank-0")
    member = Member(rig, "rank-0")
    group = ExpertGroup(member, HOST, CPU, rules="rules")
    num_layers: list[int] = []
    member.on_join = lambda: num_layers.append(len(group.layers))
    engine = Engine(EngineConfig(model=str(mixtral), kv_cache_memory_bytes=1 << 21, num_threads=1), group=group)
    engine.close()
    assert num_layers == [3]
    assert member.fingerprint == f"{engine.fingerprint}/rules"


def test_many_tokens_go_only_to_the_ranks_of_their_experts(mixtral: Path, groups: Groups) -> None:
    group = groups(mixtral, ["rank-0", "rank-1"], dtype="float32", max_num_batched_tokens=512)
    long, short = ("long", 5, 400, 3), ("short", 6, 1, 3)
    group["rank-0"].add(make_request(*long))
    group["rank-1"].add(make_request(*short))
    outputs = group.wait_for_all()
    for request in (long, short):
        expected = alone(mixtral, [make_request(*request)], "float32", max_num_batched_tokens=512)
        assert outputs[request[0]] == expected[request[0]]


def test_a_lost_ranks_experts_are_read_by_the_others(mixtral: Path, groups: Groups) -> None:
    group = groups(mixtral, ["rank-0", "rank-1", "rank-2"], dtype="float32")
    group["rank-0"].add(*make_requests(1, 4))
    group["rank-1"].add(*make_requests(2, 3))
    group["rank-0"].wait(lambda rank: any(rank.outputs.values()))
    group.lose("rank-2")
    outputs = group.wait_for_all()
    for seed, count in ((1, 4), (2, 3)):
        expected = alone(mixtral, make_requests(seed, count), "float32")
        assert {request_id: outputs[request_id] for request_id in expected} == expected
    assert sorted(sum(held(group), ())) == list(range(8))


def test_a_group_may_shrink_to_one_rank(mixtral: Path, groups: Groups) -> None:
    group = groups(mixtral, ["rank-0", "rank-1"], dtype="float32")
    group["rank-0"].add(*make_requests(1, 4))
    group["rank-0"].wait(lambda rank: any(rank.outputs.values()))
    group.lose("rank-1")
    assert group.wait_for_all() == alone(mixtral, make_requests(1, 4), "float32")


def test_with_too_few_ranks_no_step_runs_until_one_joins(mixtral: Path, groups: Groups) -> None:
    """The remaining ranks might not have memory for all experts."""
    group = groups(mixtral, ["rank-0", "rank-1", "rank-2"], fewest=3, dtype="float32")
    staying = [group["rank-0"], group["rank-1"]]
    staying[0].add(*make_requests(1, 4))
    staying[0].wait(lambda rank: any(rank.outputs.values()))
    group.lose("rank-2")
    for rank in staying:
        wait_until(lambda rank=rank: rank.engine.is_short_of_ranks)  # type: ignore[misc]
        assert rank.turn_s == 0  # a shortage must not trigger the watchdog
    assert [len(layer.held) for layer in staying[0].experts.layers] == [3, 3, 3]
    group.join("rank-3")
    assert group.wait_for_all() == alone(mixtral, make_requests(1, 4), "float32")
    assert held(group) == [(0, 1, 2), (3, 4, 5), (6, 7)]
    assert not any(rank.engine.is_short_of_ranks for rank in staying)


def test_a_joining_rank_takes_part_while_others_go_on(mixtral: Path, groups: Groups) -> None:
    group = groups(mixtral, ["rank-0"], dtype="float32")
    group["rank-0"].add(*make_requests(1, 6))
    group["rank-0"].wait(lambda rank: any(rank.outputs.values()))
    group.join("rank-1")
    group["rank-1"].add(*make_requests(2, 2))
    outputs = group.wait_for_all()
    for seed, count in ((1, 6), (2, 2)):
        expected = alone(mixtral, make_requests(seed, count), "float32")
        assert {request_id: outputs[request_id] for request_id in expected} == expected


def test_a_new_rank_gets_a_share_of_the_experts(mixtral: Path, groups: Groups) -> None:
    group = groups(mixtral, ["rank-0"], dtype="float32")
    group.join("rank-1")
    requests = make_requests(1, 30)
    group["rank-0"].add(*requests)
    outputs = group.wait_for_all()
    assert outputs == alone(mixtral, make_requests(1, 30), "float32")
    assert [len(experts) for experts in held(group)] == [4, 4]


@pytest.mark.slow
@pytest.mark.parametrize("num_redundant", [slow_case(0), 4])
def test_placement_changes_under_load_change_no_token(mixtral: Path, groups: Groups, num_redundant: int) -> None:
    settings = BalanceSettings(is_enabled=True, num_redundant=num_redundant, step_interval=10)
    names = ["rank-0", "rank-1"]
    group = groups(mixtral, names, settings, dtype="float32")
    seen = {tuple(held(group))}
    for turn in range(4):
        for place, name in enumerate(names):
            group[name].add(*make_requests(10 * turn + place, 12))
        outputs = group.wait_for_all()
        seen.add(tuple(held(group)))
        for place in range(2):
            expected = alone(mixtral, make_requests(10 * turn + place, 12), "float32")
            assert {request_id: outputs[request_id] for request_id in expected} == expected
    assert len(seen) > 1
    assert [len(experts) for experts in held(group)] == [4 + num_redundant // 2] * 2


def test_membership_changes_under_load_change_no_token(mixtral: Path, groups: Groups) -> None:
    """Random losses, joins and reports of breaks; the first rank stays and its tokens are right throughout."""
    draw = random.Random(7)
    group = groups(mixtral, ["rank-0", "rank-1"], dtype="float32")
    expected: Outputs = {}
    for turn in range(12):
        requests = make_requests(100 + turn, 3)
        group["rank-0"].add(*requests)
        expected |= alone(mixtral, make_requests(100 + turn, 3), "float32")
        others = [name for name in group.ranks if name != "rank-0"]
        match draw.choice(["lose", "join", "break", "nothing"]):
            case "lose" if others:
                group.lose(draw.choice(others))
            case "join" if len(others) < 3:
                group.join(f"rank-{turn + 2}")
            case "break":
                group.group.set_members(*group.ranks)
        group["rank-0"].wait_for_all()
    tokens = {name: [each.token_id for each in outputs] for name, outputs in group["rank-0"].outputs.items()}
    assert tokens == {name: [each.token_id for each in outputs] for name, outputs in expected.items()}


def test_a_rank_that_breaks_off_starts_a_new_epoch(mixtral: Path, groups: Groups) -> None:
    """The membership learns of failures only from the ranks."""
    group = groups(mixtral, ["rank-0", "rank-1", "rank-2"], dtype="float32")
    epoch = group.group.epoch
    group["rank-0"].add(*make_requests(1, 4))
    group["rank-0"].wait(lambda rank: any(rank.outputs.values()))
    group["rank-1"].call(lambda engine: group["rank-1"].experts.ranks.drop()).result(TIMEOUT_S)
    assert group.wait_for_all() == alone(mixtral, make_requests(1, 4), "float32")
    assert {broken for broken, _ in group.group.broken} == {epoch}
    assert all("a collective failed" in reason for _, reason in group.group.broken)
    assert group.group.epoch == epoch + 1
    assert [rank.experts.ranks.view.epoch for rank in group.ranks.values()] == [epoch + 1] * 3
    assert held(group) == [(0, 1, 2), (3, 4, 5), (6, 7)]


def test_an_idle_group_sleeps_until_it_is_woken(mixtral: Path, groups: Groups) -> None:
    group = groups(mixtral, ["rank-0", "rank-1"], dtype="float32")
    for rank in group.ranks.values():
        rank.wait(lambda rank: rank.num_steps > 0)
    assert group.group.wakes == []
    group["rank-0"].add(make_request("a", 1, 5, 2))
    group.wait_for_all()
    assert group.group.wakes[0][0] == "rank-0"  # on a slow machine, rank-1 may wake it in turn
    num_wakes = len(group.group.wakes)
    for rank in group.ranks.values():
        rank.wait(lambda rank: not rank.engine.must_step)
    before = [rank.num_steps for rank in group.ranks.values()]
    group["rank-1"].add(make_request("b", 2, 5, 2))
    group.wait_for_all()
    assert group.group.wakes[num_wakes][0] == "rank-1"
    assert all(rank.num_steps > num for rank, num in zip(group.ranks.values(), before, strict=True))


@pytest.mark.parametrize(
    ("architecture", "reason"), [("qwen3", "has no experts"), ("gemma4-moe", "has a dense MLP next to its experts")]
)
def test_a_model_without_experts_of_their_own_is_refused(tmp_path: Path, architecture: str, reason: str) -> None:
    model = make_checkpoint(architecture, tmp_path / "model")
    with pytest.raises(UnsupportedModel, match=reason):
        Ranks(model, ["rank-0"])


@pytest.mark.parametrize(("dtype", "packed"), [(torch.float32, False), (torch.bfloat16, True)])
def test_rows_do_not_depend_on_the_number_of_tiles(dtype: torch.dtype, packed: bool) -> None:
    """Bit equality with one rank relies on this."""
    draw = torch.Generator().manual_seed(1)
    for size, hidden in ((128, 256), (768, 512), (96, 64)):
        linear = Linear(torch.randn(size, hidden, generator=draw).to(dtype), packed=packed)
        rows = torch.randn(64 * ROW_TILE, hidden, generator=draw).to(dtype)
        expected = linear(rows)
        for num_tiles in (1, 2, 3, 5, 8, 13, 32):
            num_rows = num_tiles * ROW_TILE
            assert torch.equal(linear(rows[:num_rows].contiguous()), expected[:num_rows])
