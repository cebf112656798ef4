"""Experts of few tokens compared with torch in fp32, and with sorting and grouped products on the same device."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from baton.engine.execution.cuda_graphs import CudaRecorder
from baton.engine.layers.expert_pairs.choice import ChoiceKernels, choice_for, choose_in_torch
from baton.engine.layers.expert_pairs.products import PairProducts, is_served, products_for, products_in_torch
from baton.engine.layers.experts import GroupedWeights
from baton.engine.layers.moe import DeviceExchange
from baton.engine.layers.weights.grouped_product import PlainProduct
from benchmarks.gpu.numerics.closeness import OPERATION, Limits
from benchmarks.gpu.numerics.ops import drawer
from benchmarks.gpu.stage import Record, Setting

# Gates and ups, activations, outputs and weighted outputs are each rounded.
SEVERAL_ROUNDINGS = {torch.bfloat16: Limits(0.9999, 0.01, 0.25), torch.float32: OPERATION[torch.float32]}
LOGITS = OPERATION[torch.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    """Experts of a model on one rank."""

    num_experts: int
    num_chosen: int
    hidden: int
    inner: int

    def __str__(self) -> str:
        return f"{self.num_chosen} of {self.num_experts} experts, {self.hidden} x {self.inner}"


SHAPES = (
    Shape(128, 8, 2048, 768),  # Qwen3-30B-A3B
    Shape(8, 2, 512, 1792),  # Mixtral's, smaller
    Shape(60, 4, 2048, 1408),  # Qwen2-MoE
    Shape(16, 1, 520, 264),
    Shape(64, 6, 264, 88),
)
NUM_TOKENS = (1, 3, 6, 9, 25)


@dataclass(frozen=True, slots=True)
class Layer:
    """Tokens, router and experts, exact in the setting's dtype apart from the router."""

    x: Tensor
    router: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def draw(cls, shape: Shape, num_tokens: int, setting: Setting) -> "Layer":
        """Draw a layer whose results have a size of about 1."""
        draw, hidden, inner = drawer(setting, num_tokens), shape.hidden, shape.inner
        return cls(
            x=draw(num_tokens, hidden).to(setting.dtype),
            router=draw(shape.num_experts, hidden) / hidden**0.5,
            gate_up=(draw(shape.num_experts, 2 * inner, hidden) / hidden**0.5).to(setting.dtype),
            down=(draw(shape.num_experts, hidden, inner) / inner**0.5).to(setting.dtype),
        )

    def grouped(self, chosen: Tensor, weights: Tensor) -> Tensor:
        """Compute the experts of sorted rows."""
        dispatch = DeviceExchange(len(self.down)).dispatch(self.x, chosen)
        experts = GroupedWeights(PlainProduct(self.gate_up), PlainProduct(self.down))
        return dispatch.combine(experts(dispatch.rows.rows, dispatch.rows.sizes), weights)


def routings(layer: Layer, shape: Shape, choose: ChoiceKernels | None) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield named routings: by the router, and with one set of experts for all tokens."""
    logits = layer.x.float() @ layer.router.T
    weights, chosen = (choose_in_torch if choose is None else choose.choose)(logits, shape.num_chosen, 1.0, True)
    yield "routed", chosen, weights
    yield "the same experts", chosen[:1].expand_as(chosen).contiguous(), weights


def check_products(
    record: Record,
    setting: Setting,
    products: PairProducts,
    choose: ChoiceKernels | None,
    shape: Shape,
    num_tokens: int,
) -> None:
    """Compare with torch in fp32, and on a GPU with grouped products."""
    layer = Layer.draw(shape, num_tokens, setting)
    for routing, chosen, weights in routings(layer, shape, choose):
        name, is_gpu = f"{shape}, {num_tokens} tokens, {routing}", setting.device.type == "cuda"
        if is_gpu and not is_served(layer.x, chosen, layer.gate_up, layer.down):
            return
        found = products(layer.x, chosen, weights, layer.gate_up, layer.down)
        exact = [
            products_in_torch(layer.x[each].float(), chosen[each], weights[each], layer.gate_up, layer.down)
            for each in torch.arange(num_tokens, device=setting.device).split(1)  # fp32 copies of few experts at once
        ]
        record.compare(f"{name}: fp32", found, torch.cat(exact), SEVERAL_ROUNDINGS[setting.dtype])
        again = products(layer.x, chosen, weights, layer.gate_up, layer.down)
        record.find(f"{name}: again", torch.equal(again, found), "equal in every bit")
        if is_gpu:
            grouped = layer.grouped(chosen, weights)
            record.compare(f"{name}: grouped products", found, grouped.float(), SEVERAL_ROUNDINGS[setting.dtype])


def check_choice(record: Record, setting: Setting, kernels: ChoiceKernels, shape: Shape, num_tokens: int) -> None:
    """Compare logits with torch in fp64, weights and experts with torch's for the same logits."""
    layer = Layer.draw(shape, num_tokens, setting)
    name = f"{shape}, {num_tokens} tokens"
    logits = kernels.logits(layer.x, layer.router)
    record.compare(f"{name}: logits", logits, layer.x.double() @ layer.router.double().T, LOGITS)
    for is_normed in (True, False):
        weights, chosen = kernels.choose(logits, shape.num_chosen, 1.5, is_normed)
        expected, theirs = choose_in_torch(logits, shape.num_chosen, 1.5, is_normed)
        record.compare(f"{name}: weights, normed {is_normed}", weights, expected, LOGITS)
        is_same = torch.equal(chosen, theirs)
        record.find(f"{name}: experts, normed {is_normed}", is_same, "torch's" if is_same else "not torch's")
    equal = torch.zeros_like(logits)
    equal[-1] = torch.nan
    _, chosen = kernels.choose(equal, shape.num_chosen, 1.0, True)
    first = torch.arange(shape.num_chosen, device=setting.device).expand_as(chosen)
    record.find(f"{name}: equal logits and NaN", torch.equal(chosen, first), "the first experts")


def check_replay(record: Record, setting: Setting, products: PairProducts, kernels: ChoiceKernels) -> None:
    """Record routing and experts in a CUDA graph, and replay it with other tokens."""
    shape, num_tokens = SHAPES[0], 4
    layer = Layer.draw(shape, num_tokens, setting)
    result = torch.empty_like(layer.x)

    def compute() -> Tensor:
        weights, chosen = kernels.choose(kernels.logits(layer.x, layer.router), shape.num_chosen, 1.0, True)
        return result.copy_(products(layer.x, chosen, weights, layer.gate_up, layer.down))

    replay = CudaRecorder().record(compute)
    layer.x.copy_(Layer.draw(shape, num_tokens + 1, setting).x[1:])
    replay()
    replayed = result.clone()
    record.find("replayed", torch.equal(replayed, compute()), "equal to the same launches in every bit")


@torch.inference_mode()
def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    device, is_gpu = setting.device, setting.device.type == "cuda"
    products, kernels = products_for(device), choice_for(device)
    if is_gpu:
        record.find("kernels compute experts of few tokens", products is not None, "see the log if not")
        record.find("kernels choose experts", kernels is not None, "see the log if not")
    for shape in SHAPES[3:] if setting.is_quick else SHAPES:
        for num_tokens in NUM_TOKENS[:2] if setting.is_quick else NUM_TOKENS:
            case = f"{shape}, {num_tokens} tokens"
            products_check = partial(
                check_products, record, setting, products or products_in_torch, kernels, shape, num_tokens
            )
            if products is not None or not is_gpu:
                record.attempt(case, products_check)
            if kernels is not None:
                record.attempt(f"{case}: choice", partial(check_choice, record, setting, kernels, shape, num_tokens))
    if products is not None and kernels is not None:
        record.attempt("replayed", partial(check_replay, record, setting, products, kernels))
