"""Adapters of latent attention, whose `kv_b_proj` is applied to queries and attended latents."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from baton.engine.errors import InvalidAdapter
from baton.engine.layers.head_linear import HeadLinear
from baton.engine.layers.linear_source import LinearSource, ProjectionRows
from baton.engine.lora import stacked as stacked_adapters
from baton.engine.lora.adaptable_layer import AdaptableLayer
from baton.engine.lora.config import LoraConfig
from baton.engine.lora.low_rank import LowRank, LowRankOutput
from baton.engine.lora.segmented import SegmentedAdapters
from baton.engine.lora.stacked import StackedAdapters
from tests.adapters import LATENT_TARGETS, make_adapter
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case
from tests.unit.engine.lora.lora_rig import GREEDY, lora_engine, random_tokens, request, run, with_adapters
from tests.unit.engine.lora.test_adapter_outputs import peft_tokens
from tests.unit.engine.lora.test_stacked_adapters import batch

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # PEFT uses it
]

PROMPT = random_tokens(40)
LATENT = (*LATENT_TARGETS, "o_proj")
NAMES = (None, "all", "expansion", "rescaled")
NUM_HEADS, NOPE, VALUE, RANK, LORA = 3, 4, 2, 2, 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("deepseek-v3", tmp_path_factory.mktemp("latent") / "model")


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Adapters of all projections, of the absorbed one with an odd rank, and of that with DoRA."""
    directory = tmp_path_factory.mktemp("adapters")
    return {
        "all": make_adapter(model, directory / "all", LATENT, seed=1),
        "expansion": make_adapter(model, directory / "expansion", ["kv_b_proj"], rank=3, seed=2, size=0.5),
        "rescaled": make_adapter(model, directory / "rescaled", LATENT, seed=3, size=0.2, use_dora=True),
    }


@pytest.fixture(scope="module")
def expected(model: Path, adapters: dict[str, Path]) -> dict[str, list[int]]:
    engine = with_adapters(model, adapters, enable_prefix_caching=False)
    tokens = {str(name): run(engine, request(str(name), PROMPT, name))[str(name)] for name in NAMES}
    assert len({tuple(each) for each in tokens.values()}) == len(NAMES)
    return tokens


@pytest.mark.parametrize("name", ["rescaled", slow_case("all"), slow_case("expansion")])
def test_tokens_are_those_of_peft(
    model: Path, adapters: dict[str, Path], expected: dict[str, list[int]], name: str
) -> None:
    assert expected[name] == peft_tokens(model, adapters[name], PROMPT)


@pytest.mark.parametrize(
    "options",
    [
        {},
        slow_case({"async_scheduling": True}),
        {"max_num_batched_tokens": 24, "max_num_seqs": 5},  # prompts in chunks, next to decodes
        slow_case({"max_loras": 1}),
    ],
    ids=lambda options: next(iter(options), "plain"),
)
def test_a_mixed_batch_gives_each_request_its_tokens(
    model: Path, adapters: dict[str, Path], expected: dict[str, list[int]], options: dict[str, object]
) -> None:
    engine = with_adapters(model, adapters, **options)
    for _ in range(2):  # the second time the prompts are in the prefix cache
        assert run(engine, *(request(str(name), PROMPT, name) for name in NAMES)) == expected


def test_preempted_requests_keep_their_adapters(
    model: Path, adapters: dict[str, Path], expected: dict[str, list[int]]
) -> None:
    sampling = replace(GREEDY, max_tokens=40)
    requests = [request(str(name), PROMPT, name, sampling) for name in NAMES]
    small = with_adapters(model, adapters, kv_cache_memory_bytes=18 * 16 * 3 * (32 + 8) * 4)
    outputs = run(small, *requests)
    assert small.stats().num_preemptions > 0
    assert {name: tokens[:12] for name, tokens in outputs.items()} == expected


def test_activated_adapters_cannot_change_the_expansion(model: Path, tmp_path: Path) -> None:
    """The tokens in front of the invocation have the model's keys, which queries of later ones would change."""
    engine, options = lora_engine(model), {"alora_invocation_tokens": PROMPT[20:22]}
    with pytest.raises(InvalidAdapter, match=r"layers\.0\.self_attn\.kv_b_proj cannot be changed by an activated"):
        engine.adapters.load("a", make_adapter(model, tmp_path / "a", LATENT, **options))
    others = [target for target in LATENT if target != "kv_b_proj"]
    engine.adapters.load("b", make_adapter(model, tmp_path / "b", others, size=0.5, **options))
    outputs = run(engine, request("b", PROMPT, "b"), request("base", PROMPT))
    assert outputs["b"] != outputs["base"]


def head_layers(dtype: torch.dtype) -> list[AdaptableLayer]:
    """Return the products with keys and values of heads."""
    draw, size = torch.Generator().manual_seed(1), NOPE + VALUE

    def source(first: int, last: int) -> LinearSource:
        rows = [slice(head * size + first, head * size + last) for head in range(NUM_HEADS)]
        return LinearSource([ProjectionRows("kv_b", NUM_HEADS * size, each) for each in rows], LORA, slice(None))

    keys, values = source(0, NOPE), source(NOPE, size)
    of_keys = HeadLinear(torch.randn(NUM_HEADS, NOPE, LORA, generator=draw).to(dtype), keys, is_transposed=True)
    of_values = HeadLinear(torch.randn(NUM_HEADS, LORA, VALUE, generator=draw).to(dtype), values)
    return [AdaptableLayer(of_keys, keys), AdaptableLayer(of_values, values)]


def head_matrices(number: int, dtype: torch.dtype) -> Sequence[LowRank | None]:
    """Return an adapter's matrices; the first one is DoRA, and the second one leaves the values as they are."""
    draw = torch.Generator().manual_seed(number)
    made: list[LowRank | None] = []
    for size in (NOPE, VALUE):
        gain = torch.randn(NUM_HEADS * size, generator=draw) if number == 1 else None
        a, b = (torch.randn(each, generator=draw).to(dtype) for each in ((RANK, LORA), (NUM_HEADS * size, RANK)))
        output = LowRankOutput(slice(0, NUM_HEADS * size), slice(0, RANK), b, gain)
        made.append(LowRank(a, [output]))
    return [made[0], None] if number == 2 else made


def with_weights_changed(layer: HeadLinear, x: Tensor, matrices: LowRank | None) -> Tensor:
    """Return the product of x with the weights to which an adapter's part is added."""
    weight = layer.weight.float()
    if matrices is not None:
        (output,) = matrices.outputs
        added = (output.b.float() @ matrices.a.float()).view(NUM_HEADS, -1, LORA)
        gain = 0 if output.gain is None else output.gain.view(NUM_HEADS, -1, 1)
        rows = weight if layer.is_transposed else weight.mT
        rows = rows * (1 + gain) + added
        weight = rows if layer.is_transposed else rows.mT
    return torch.einsum("thi,hio->tho", x.float(), weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_kinds_of_products_are_those_of_changed_weights(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacked_adapters, "NUM_ROWS", 16)  # so that the rows are in several parts
    draw, tolerance = torch.Generator().manual_seed(2), 1e-5 if dtype == torch.float32 else 0.06
    inputs = [torch.randn(40, NUM_HEADS, width, generator=draw).to(dtype) for width in (NOPE, LORA)]
    changed = {number: head_matrices(number, dtype) for number in (1, 2)}
    for step in (([1, 0, 2], [2, 4, 34]), ([2, 1], [5, 35]), ([0], [40])):
        numbers = torch.tensor(step[0]).repeat_interleave(torch.tensor(step[1])).tolist()
        for kind in ("segmented", "stacked"):
            layers = head_layers(dtype)
            config = LoraConfig(enabled=True, max_loras=2, max_rank=4, max_cpu_loras=4)
            made = SegmentedAdapters(layers) if kind == "segmented" else StackedAdapters(layers, config, dtype)
            for number in (1, 2):
                made.add(number, changed[number])
            made.plan(batch(*step))
            for place, (each, x) in enumerate(zip(layers, inputs, strict=True)):
                assert isinstance(each.layer, HeadLinear)
                with torch.inference_mode():
                    ours = each.layer(x)
                rows = [
                    with_weights_changed(each.layer, x[row : row + 1], changed[number][place] if number else None)
                    for row, number in enumerate(numbers)
                ]
                torch.testing.assert_close(ours.float(), torch.cat(rows), atol=tolerance, rtol=tolerance)
