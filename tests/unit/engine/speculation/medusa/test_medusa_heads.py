"""Medusa heads draft what plain torch computes of transformers' hidden states, and outputs are those without drafts."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.checkpoint.tensor_index import weight_files
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import EngineError, InvalidCheckpoint
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.speculation.config import SpeculationConfig
from baton.engine.speculation.medusa.medusa_checkpoint import MedusaCheckpoint
from baton.engine.speculation.medusa.medusa_drafter import MedusaDrafter
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case, slow_except
from tests.medusa_heads import OWN_FILE, random_heads
from tests.unit.engine.speculation.free_drafts import FreeDrafts
from tests.unit.engine.speculation.heads.head_reference import hidden_states
from tests.unit.engine.speculation.heads.head_rig import advance, option
from tests.unit.engine.speculation.speculation_rig import assert_equal, copies, engine_of, run
from tests.unit.engine.speculation.test_draft_models import LONGEST, requests_of
from tests.unit.engine.tensor_rig import TensorRig

HEADS, LAYERS = 3, 2
SCARCE = 260_000  # bytes of KV and hidden states


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("qwen3") / "model")


def medusa_engine(model: Path, heads: Path, **options: object) -> Engine:
    engine = engine_of(model, False, speculative_config=option("medusa", heads), **options)
    return draft_freely(engine)


def draft_freely(engine: Engine) -> Engine:
    assert engine.speculator is not None
    engine.speculator._costs = FreeDrafts()
    return engine


def drafter_of(engine: Engine) -> MedusaDrafter:
    assert engine.speculator is not None
    assert isinstance(engine.speculator._drafter, MedusaDrafter)
    return engine.speculator._drafter


def reference_drafts(model: Path, tensors: Mapping[str, Tensor], token_ids: Sequence[int]) -> list[int]:
    """A token of each head after `token_ids`, of which the model has computed all but the last."""
    state, drafts = hidden_states(model, token_ids[:-1])[-1][-1], []
    for head in range(HEADS):
        x = state
        for layer in range(LAYERS):
            x = x + F.silu(tensors[f"{head}.{layer}.linear.weight"] @ x + tensors[f"{head}.{layer}.linear.bias"])
        drafts.append(int((tensors[f"{head}.{LAYERS}.weight"] @ x).argmax()))
    return drafts


@pytest.mark.parametrize("is_own", [True, False])
def test_drafts_are_those_of_plain_torch(model: Path, tmp_path: Path, is_own: bool) -> None:
    tensors = random_heads(model, tmp_path / "heads", num_heads=HEADS, num_layers=LAYERS, is_own=is_own)
    engine = medusa_engine(model, tmp_path / "heads")
    assert engine.speculator is not None
    engine.speculator._max_tokens = 0
    request = Request(
        RequestId("a"), list(range(5, 25)), 20, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    )
    engine.add(request)
    for length in (21, 30):
        advance(engine, request, length)
        drafter = drafter_of(engine)
        offer = drafter.offer(request, 9)
        assert offer is not None
        assert offer.num_tokens == HEADS
        found = drafter.draft({request: HEADS}, 0.0).token_ids[request]
        expected = reference_drafts(model, tensors, request.token_ids)
        assert list(found) == expected[: len(found)]
        assert len(found) == HEADS or expected[len(found)] == 2, "an end is not drafted"
    assert engine.speculator.counters.num_drafts == 0


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("qwen3", {"kv_cache_memory_bytes": SCARCE, "max_model_len": LONGEST}),
        slow_case("qwen3-next", {"state_checkpoint_tokens": 8, "kv_cache_memory_bytes": 1 << 22}),
        slow_case("gemma3", {"hybrid_kv_cache": True}),
        slow_case("deepseek-v3", {}),
    ],
)
def test_outputs_equal_those_without_drafts(architecture: str, options: dict[str, object], tmp_path: Path) -> None:
    model = make_checkpoint(architecture, tmp_path / "model")
    random_heads(model, tmp_path / "heads")
    requests = requests_of(3, 15)
    expected = run(engine_of(model, False, **options), copies(requests))
    engine = medusa_engine(model, tmp_path / "heads", **options)
    assert_equal(run(engine, requests), expected)
    counters = engine.stats().speculation
    assert counters.num_draft_tokens > 100
    assert counters.drafting_s > 0


def test_drafts_are_sampled_with_the_requests_own_options(model: Path, tmp_path: Path) -> None:
    """A bias that decides all tokens decides those of the heads, too."""
    random_heads(model, tmp_path / "heads")
    sampling = SamplingParams(temperature=1.0, seed=3, logit_bias={7: 100.0}, max_tokens=41, ignore_eos=True)
    engine = medusa_engine(model, tmp_path / "heads")
    run(engine, [Request(RequestId("a"), [5, 6, 8], 3, sampling)])
    counters = engine.stats().speculation
    assert counters.num_accepted_tokens == counters.num_draft_tokens > 25
    assert counters.accepted_by_position[HEADS - 1] > 8


def test_tensor_parallel_ranks(model: Path, tmp_path: Path) -> None:
    """Rank 0 has the heads."""
    random_heads(model, tmp_path / "heads")
    requests = requests_of(2, 6)
    expected = run(engine_of(model, False), copies(requests))
    options = {"block_size": 4, "max_num_batched_tokens": 32, "max_num_seqs": 8}
    rig = TensorRig(model, 2, speculative_config=option("medusa", tmp_path / "heads"), **options)
    try:
        rig.call(draft_freely)
        assert_equal(rig.call(lambda engine: run(engine, requests)), expected)
        assert rig.engine.stats().speculation.num_draft_tokens > 30
    finally:
        rig.close()


@pytest.mark.parametrize("broken", slow_except(("shape", "extra", "none", "pickle", "missing"), ("shape", "pickle")))
def test_files_that_do_not_fit_are_refused(model: Path, tmp_path: Path, broken: str) -> None:
    heads = tmp_path / "heads"
    tensors = random_heads(model, heads)
    reasons = {
        "shape": r"0.2.weight is \[9, 64\], but must be \[320, 64\]",
        "extra": "token_map",
        "none": "no heads of Medusa",
        "pickle": "medusa_lm_head.pt is a pickle, which is not read; convert it once",
        "missing": r"blocks.1.layers.0.weight|1.0.linear.weight",
    }
    if broken == "shape":
        tensors["0.2.weight"] = tensors["0.2.weight"][:9].contiguous()
    elif broken == "extra":
        tensors["token_map"] = torch.arange(9)
    elif broken == "none":
        tensors = {"other.weight": torch.ones(2)}
    elif broken == "missing":
        del tensors["1.0.linear.weight"]
    save_file(tensors, heads / OWN_FILE)
    if broken == "pickle":
        torch.save(load_file(heads / OWN_FILE), heads / "medusa_lm_head.pt")
        (heads / OWN_FILE).unlink()
    with pytest.raises(EngineError, match=reasons[broken]) as found:
        medusa_engine(model, heads)
    assert isinstance(found.value, InvalidCheckpoint)


@pytest.mark.parametrize("files", [["model-1.safetensors", "model.safetensors.index.json"], ["model.gguf"]])
def test_heads_next_to_a_model_are_not_read_in_its_place(files: list[str], tmp_path: Path) -> None:
    for name in (*files, OWN_FILE):
        (tmp_path / name).write_text('{"weight_map": {"model.norm.weight": "model-1.safetensors"}}')
    assert weight_files(tmp_path) == [tmp_path / files[0]]


def test_memory_is_that_of_the_models_dtype(model: Path, tmp_path: Path) -> None:
    tensors = random_heads(model, tmp_path / "heads")
    save_file({name: each.half() for name, each in tensors.items()}, tmp_path / "heads" / OWN_FILE)
    text = option("medusa", tmp_path / "heads")
    options = SpeculationConfig.parse(text)
    assert options is not None
    target = read_model_config(model, "float32")
    heads = MedusaCheckpoint.of(EngineConfig(model=str(model), speculative_config=text), target, options)
    assert heads.weights_bytes == sum(each.nbytes for each in tensors.values())
