"""Tensor-parallel ranks with shards of adapters give the tokens of one rank."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.engine.lora.registry import ReadAdapter
from tests.adapters import LATENT_TARGETS, make_adapter
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case, slow_except
from tests.unit.engine.lora.lora_rig import lora_engine, random_tokens, request, run
from tests.unit.engine.tensor_rig import TensorRig

PROMPT = random_tokens(50)
TIMEOUT_S = 10.0
NAMES = (None, "all", "attention", "down")


@pytest.fixture
def rig(model: Path, request: pytest.FixtureRequest) -> Iterator[TensorRig]:
    made = TensorRig(model, request.param, enable_lora=True)
    yield made
    made.close()


def load(rig: TensorRig, name: str, path: Path) -> ReadAdapter:
    """Load an adapter on all ranks, as a worker does."""
    registry = rig.engine.adapters
    number = registry.next_number()
    read = registry.read(name, path, number)
    others = [rig.follower(rank).adapters.read(name, path, number) for rank in range(1, len(rig.names))]
    assert {each.info for each in others} == {read.info}
    rig.call(lambda engine: engine.adapters.insert(read))
    return read


@pytest.mark.parametrize("rig", [2, slow_case(4)], indirect=True)
def test_ranks_give_the_tokens_of_one(model: Path, adapters: dict[str, Path], rig: TensorRig) -> None:
    single = lora_engine(model)
    reads = []
    for name, path in adapters.items():
        single.adapters.load(name, path)
        reads.append(load(rig, name, path))
    expected = run(single, *(request(str(name), PROMPT, name) for name in NAMES))
    assert len({tuple(tokens) for tokens in expected.values()}) == len(NAMES)
    together = [request(str(name), PROMPT, name) for name in NAMES]
    assert rig.call(lambda engine: run(engine, *together)) == expected
    for read in reads:
        rig.call(lambda engine, name=read.info.name: engine.adapters.unload(name))
        rig.follower(1).drop_adapter(read.number)
    deadline_s = time.monotonic() + TIMEOUT_S  # its last step may be ending
    while rig.follower(1).adapters.resident_numbers():
        assert time.monotonic() < deadline_s, "an idle rank keeps what rank 0 has dropped"
    rig.call(lambda engine: run(engine, request("last", PROMPT)))


RECURRENT = ("qwen3-next", "nemotron-h", "falcon-h1", "mamba2", "granite-hybrid")
LATENT = ("deepseek-v3", "deepseek-v2-lite")
DELTA_NET = ["in_proj_qkvz", "in_proj_ba", "out_proj", "q_proj"]


@pytest.mark.parametrize(
    "family", slow_except(("phi3", "gemma2", "mixtral", *RECURRENT, *LATENT), ("qwen3-next", "deepseek-v3"))
)
def test_shards_of_other_families(tmp_path: Path, family: str) -> None:
    model = make_checkpoint(family, tmp_path / "model")
    targets = {
        "phi3": ["qkv_proj", "gate_up_proj", "down_proj", "o_proj"],
        "mixtral": ["q_proj", "k_proj", "v_proj", "o_proj"],
        "qwen3-next": DELTA_NET,
        "deepseek-v3": [*LATENT_TARGETS, "o_proj"],
        "deepseek-v2-lite": ["q_proj", "kv_b_proj", "o_proj"],
        **{name: ["in_proj", "out_proj"] for name in RECURRENT[1:]},
    }
    adapter = make_adapter(
        model,
        tmp_path / "a",
        targets.get(family, ["k_proj", "up_proj", "down_proj", "o_proj"]),
        use_dora=family == "deepseek-v3",
    )
    single, rig = lora_engine(model), TensorRig(model, 2, enable_lora=True)
    try:
        single.adapters.load("a", adapter)
        load(rig, "a", adapter)
        expected = run(single, request("a", PROMPT, "a"))
        assert rig.call(lambda engine: run(engine, request("a", PROMPT, "a"))) == expected
    finally:
        rig.close()
