"""Models on a device other than the CPU: no operation mixes it with the CPU. Meta tensors stand in for a GPU's."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from baton.engine.attention.factory import attention_for
from baton.engine.layers.moe import MoE
from baton.engine.models import load_model
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case
from tests.paged_model import PagedModel

META = torch.device("meta")


class OneDevice(TorchDispatchMode):
    """Mode that refuses operations on tensors of several devices, apart from copies; CUDA permits some, but waits."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        leaves = tree_leaves((args, kwargs or {}))
        devices = {each.device for each in leaves if isinstance(each, Tensor) and each.dim()}
        assert len(devices) < 2 or "copy" in func.__name__, f"{func} of tensors on {devices}"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "architecture", ["qwen3-next", "gemma4", "deepseek-v32", *map(slow_case, ("falcon-h1", "nemotron-h"))]
)
def test_a_step_computes_on_its_own_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str) -> None:
    monkeypatch.setattr(torch.Tensor, "__float__", lambda _: 1.0)  # of a layer's scale
    monkeypatch.setattr(MoE, "__call__", lambda _, x: torch.zeros_like(x))  # its counts are not known on this device
    source = make_checkpoint(architecture, tmp_path)
    paged = PagedModel(source)
    attention = attention_for(paged.config, 16, META)
    model, pool = load_model(source, paged.config, META, attention, groups=paged.groups), paged.pool.to(META)
    for lens in ({"a": 90, "b": 5}, {"a": 1, "c": 1, "b": 37}, {"a": 1, "b": 1}):
        batch = paged.batch(list(lens), [list(range(length)) for length in lens.values()])
        with OneDevice():
            assert model.forward(batch, pool).device == META
