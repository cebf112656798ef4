"""Experts of few tokens: Triton's kernels in its interpreter, their choice, and their use by layers."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from baton.engine.experts.dispatch import LocalExchange
from baton.engine.layers import expert_routing, experts
from baton.engine.layers.expert_pairs import choice, products
from baton.engine.layers.expert_pairs.choice import ChoiceKernels, choice_for, choose_in_torch
from baton.engine.layers.expert_pairs.products import (
    PairProducts,
    are_few,
    check_kernels,
    is_served,
    products_for,
    products_in_torch,
)
from baton.engine.layers.expert_routing import ExpertChoice
from baton.engine.layers.experts import Expert, Experts
from baton.engine.layers.linear import Linear
from baton.engine.layers.moe import DeviceExchange, MoE
from baton.engine.moe import MoEConfig
from baton.engine.parallel.tensor_parallel import OneRank
from tests.paged_model import CPU

CUDA, BF16 = torch.device("cuda"), torch.bfloat16
CONFIG = MoEConfig(num_experts=8, num_experts_per_token=2, intermediate_size=16)
HIDDEN = 24
IN_TRITON = """
from baton.engine.layers.expert_pairs import choice, products
from tests.unit.engine.layers.expert_pair_cases import check_choice, check_products

check_products(products.load_kernels())
check_choice(choice.load_kernels())
print("equal")
"""


# The shape of Qwen3-30B-A3B on a GPU, without one: all weights and tokens are read 16 bytes at a time.
FOR_HOPPER = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from baton.engine.layers.expert_pairs.products_triton import COLUMNS, DOWN_ROWS, GATE_ROWS, _down, _gate_up

types = {"x": "*bf16", "chosen": "*i64", "weights": "*fp32", "weight": "*bf16", "activated": "*bf16"}
types |= {"result": "*bf16", "x_stride": "i32"}
sizes = {"NUM_CHOSEN": 8, "HIDDEN": 2048, "INNER": 768, "CHOSEN": 8, "COLUMNS": COLUMNS}
for kernel, rows in ((_gate_up, GATE_ROWS), (_down, DOWN_ROWS // 8)):
    names, constants = kernel.arg_names, sizes | {"ROWS": rows}
    signature = {name: types.get(name, "constexpr") for name in names}
    constants = {(index,): constants[name] for index, name in enumerate(names) if name in constants}
    aligned = {(index,): [["tt.divisibility", 16]] for index, name in enumerate(names) if name in types}
    source = ASTSource(kernel, signature, constants, aligned)
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1}).asm["ptx"]
    narrow = {load for load in re.findall(r"ld\\.global[\\w.]*", ptx) if not load.endswith((".v4.b32", ".b64"))}
    assert not narrow and "ld.global.v4.b32" in ptx, narrow
    assert ".local" not in ptx
print("compiled")
"""


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    for cached in (products_for, choice_for):
        cached.cache_clear()
    yield
    for cached in (products_for, choice_for):
        cached.cache_clear()


def run_python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_triton_kernels_match_torch() -> None:
    """Run Triton's interpreter in a subprocess, since it must be selected before Triton is imported."""
    pytest.importorskip("triton", reason="Triton comes with torch for GPUs")
    run = run_python(IN_TRITON, TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
    assert run.stdout == "equal\n", run.stderr


@pytest.mark.slow
def test_the_triton_kernels_compile_to_wide_reads(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton comes with torch for GPUs")
    run = run_python(FOR_HOPPER, TRITON_CACHE_DIR=str(tmp_path))
    assert run.stdout == "compiled\n", run.stderr


def linear(outputs: int, inputs: int, generator: torch.Generator) -> Linear:
    return Linear((torch.randn(outputs, inputs, generator=generator) / inputs**0.5).to(BF16), packed=False)


def make_layer(*, is_grouped: bool) -> MoE:
    generator = torch.Generator().manual_seed(0)
    router = ExpertChoice(CONFIG, torch.randn(8, HIDDEN, generator=generator), None)
    slots = [Expert(linear(32, HIDDEN, generator), linear(HIDDEN, 16, generator)) for _ in range(8)]
    exchange = DeviceExchange(8) if is_grouped else LocalExchange(8)
    return MoE(router, Experts(slots, is_grouped=is_grouped), exchange, None, OneRank())


def tokens(num_tokens: int) -> Tensor:
    return torch.randn(num_tokens, HIDDEN, generator=torch.Generator().manual_seed(num_tokens)).to(BF16)


@pytest.mark.parametrize(("num_tokens", "is_few"), [(1, True), (6, True), (8, False), (40, False), (0, False)])
def test_layers_compute_few_tokens_by_themselves(
    monkeypatch: pytest.MonkeyPatch, num_tokens: int, is_few: bool
) -> None:
    calls: list[int] = []

    def counted(x: Tensor, *arguments: Tensor, **weights: Tensor) -> Tensor:
        calls.append(len(x))
        return products_in_torch(x, *arguments, **weights)

    monkeypatch.setattr(experts, "products_for", lambda _: counted)
    x = tokens(num_tokens)
    expected = make_layer(is_grouped=False)(x)
    torch.testing.assert_close(make_layer(is_grouped=True)(x), expected, atol=1e-2, rtol=1e-2)
    assert calls == [num_tokens] * is_few


def test_other_experts_are_sorted() -> None:
    generator = torch.Generator().manual_seed(0)
    slots = [Expert(linear(32, HIDDEN, generator), linear(HIDDEN, 16, generator)) for _ in range(8)]
    x, chosen = tokens(1), torch.tensor([[3, 1]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experts, "products_for", lambda _: products_in_torch)
        assert Experts(slots, is_grouped=True).for_few(x, chosen) is not None
        assert Experts(slots, is_grouped=False).for_few(x, chosen) is None
        assert Experts(slots, is_grouped=True).for_few(x.float(), chosen) is None
        others = [replace(each, activation="gelu_tanh") for each in slots]
        assert Experts(others, is_grouped=True).for_few(x, chosen) is None
        for each in slots:
            each.down.bias = torch.zeros(HIDDEN, dtype=BF16)
        assert Experts(slots, is_grouped=True).for_few(x, chosen) is None
    assert Experts(slots, is_grouped=True).for_few(x, chosen) is None  # there is no kernel for a CPU


def test_few_is_up_to_twice_the_bytes_of_the_chosen_experts() -> None:
    most = {
        shape: max(n for n in range(1, 99) if are_few(n, *shape)) for shape in ((8, 128), (2, 8), (1, 16), (8, 256))
    }
    assert most == {(8, 128): 26, (2, 8): 6, (1, 16): 26, (8, 256): 32}
    assert not are_few(0, 8, 128)


def test_shapes_without_whole_vectors_are_not_served() -> None:
    def served(hidden: int, inner: int, dtype: torch.dtype = BF16) -> bool:
        gate_up, down = torch.empty(8, 2 * inner, hidden, dtype=dtype), torch.empty(8, hidden, inner, dtype=dtype)
        return is_served(torch.empty(1, hidden, dtype=dtype), torch.zeros(1, 2, dtype=torch.int64), gate_up, down)

    assert served(16, 24)
    assert not served(12, 24)
    assert not served(16, 20)
    assert not served(16, 24, torch.float16)


def test_kernels_are_tried_first() -> None:
    def wrong(*arguments: Tensor) -> Tensor:
        return products_in_torch(*arguments) * 1.1

    check_kernels(products_in_torch, CPU)
    with pytest.raises(ArithmeticError, match="their results are wrong"):
        check_kernels(wrong, CPU)
    right = ChoiceKernels(lambda x, weight: x.float() @ weight.T, choose_in_torch)
    choice.check_kernels(right, CPU)
    with pytest.raises(ArithmeticError, match="their results are wrong"):
        choice.check_kernels(replace(right, logits=lambda x, weight: x.float() @ weight.T + 0.1), CPU)
    with pytest.raises(ArithmeticError, match="their results are wrong"):
        choice.check_kernels(replace(right, choose=lambda *given: choose_in_torch(-given[0], *given[1:])), CPU)


def missing() -> PairProducts:
    raise ImportError("No module named 'triton'")


def test_kernels_that_fail_are_not_used_and_the_reason_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module, find in ((products, products_for), (choice, choice_for)):
        monkeypatch.setattr(module, "load_kernels", missing)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert find(CUDA) is find(CUDA) is None
        (record,) = caplog.records  # once, not per layer
        assert record.getMessage().endswith("do not work: ImportError: No module named 'triton'")


def test_kernels_that_work_are_used_on_gpus_only(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ChoiceKernels(lambda x, weight: x.float() @ weight.T, choose_in_torch)
    for module, find, kernels in ((products, products_for, products_in_torch), (choice, choice_for, right)):
        monkeypatch.setattr(module, "load_kernels", lambda kernels=kernels: kernels)
        monkeypatch.setattr(module, "check_kernels", lambda *_: None)
        assert find(CUDA) is kernels
        assert find(CPU) is None


@pytest.mark.parametrize(
    ("config", "is_plain"),
    [
        (CONFIG, True),
        (replace(CONFIG, norm_topk_prob=False, routed_scaling_factor=2.5), True),
        (replace(CONFIG, scoring="sigmoid"), False),
        (replace(CONFIG, num_groups=4, topk_groups=2), False),
    ],
)
def test_routers_with_the_plain_rule_use_the_kernels(
    monkeypatch: pytest.MonkeyPatch, config: MoEConfig, is_plain: bool
) -> None:
    calls: list[str] = []

    def logits(x: Tensor, weight: Tensor) -> Tensor:
        calls.append("logits")
        return x.float() @ weight.T

    def choose(logits: Tensor, num_chosen: int, factor: float, is_normed: bool) -> tuple[Tensor, Tensor]:
        calls.append("choose")
        return choose_in_torch(logits, num_chosen, factor, is_normed)

    weight = torch.randn(8, HIDDEN, generator=torch.Generator().manual_seed(0))
    router = ExpertChoice(config, weight, None)
    expected = router(tokens(3))
    router._product = router._rule = None  # as on a GPU
    monkeypatch.setattr(expert_routing, "choice_for", lambda _: ChoiceKernels(logits, choose))
    found = router(tokens(3))
    assert calls == ["logits", *["choose"] * is_plain]
    assert torch.equal(found[1], expected[1])
    torch.testing.assert_close(found[0], expected[0], atol=1e-4, rtol=1e-4)
    calls.clear()
    router(tokens(40))
    assert calls == ["choose"] * is_plain  # the logits of many tokens are a product
