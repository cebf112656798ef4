"""Whole models whose layers are copied from host memory, on a CPU in the part of the GPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from baton.engine.engine import Engine
from baton.engine.layers.attention import GroupedQueryAttention
from baton.engine.layers.linear import Linear
from baton.engine.models.causal_lm import CausalLM
from baton.engine.offload.device_copies import SerialCopies
from baton.engine.offload.device_stream import DeviceStream
from baton.engine.offload.host_offload import ALIGNMENT
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case
from tests.unit.engine.offload.offload_rig import config_of, outputs, requests, running
from tests.unit.engine.offload.test_offloaded_outputs import WIDE, least_memory

HOST: dict[str, Any] = {"dtype": "float32", "weights_offload": "host"}
PAGE = 4096


class CountedCopies(SerialCopies):
    """Serial copies that count what is pinned."""

    def __init__(self, *_: object) -> None:
        self.pinned: list[Tensor] = []

    def pin(self, memory: Tensor) -> None:
        self.pinned.append(memory)

    def close(self) -> None:
        self.pinned.clear()


@pytest.fixture(autouse=True)
def cpu_as_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let weights on the CPU be plain matrices, as on a GPU, and allow to offload them."""
    monkeypatch.setattr("baton.engine.layers.linear._can_pack", lambda _: False)
    monkeypatch.setattr("baton.engine.execution.load_plan.check_offload", lambda *_, **__: None)
    monkeypatch.setattr("baton.engine.offload.factory.CudaCopies", CountedCopies)


def stream_of(engine: Engine) -> DeviceStream:
    assert isinstance(engine.weights_source, DeviceStream)
    return engine.weights_source


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("llama3", WIDE),
        slow_case("gemma2", WIDE),
        slow_case("qwen3.5", {"hidden_size": 256, "intermediate_size": 512}),
        slow_case("falcon-h1", {"hidden_size": 256, "intermediate_size": 512}),
    ],
)
def test_outputs_are_those_of_weights_in_memory(family: str, sizes: dict[str, int], tmp_path: Path) -> None:
    model = make_checkpoint(family, tmp_path / "model", **sizes)
    with running(config_of(model, dtype="float32")) as engine:
        expected = [outputs(engine, requests()) for _ in range(2)]  # the second time from the prefix cache
    least = least_memory(config_of(model, **HOST))
    with running(config_of(model, weights_memory_bytes=least, **HOST)) as engine:
        assert [outputs(engine, requests()) for _ in range(2)] == expected
        assert engine.stats().offload.num_read_bytes > 0


def test_no_page_stays_locked_if_the_rest_of_a_load_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_checkpoint("llama3", tmp_path / "model", **WIDE)
    config = config_of(directory, weights_memory_bytes=least_memory(config_of(directory, **HOST)), **HOST)
    made: list[CountedCopies] = []

    def copies(*_: object) -> CountedCopies:
        made.append(CountedCopies())
        return made[0]

    def fail(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        assert made[0].pinned
        raise MemoryError

    monkeypatch.setattr("baton.engine.offload.factory.CudaCopies", copies)
    with pytest.raises(MemoryError):
        Engine(config, allocate_pool=fail)
    assert not made[0].pinned


def test_layers_share_two_buffers_and_pin_their_own_pages(tmp_path: Path) -> None:
    directory = make_checkpoint("llama3", tmp_path / "model", **WIDE)
    least = least_memory(config_of(directory, **HOST))
    with running(config_of(directory, weights_memory_bytes=least, **HOST)) as engine:
        stream = stream_of(engine)
        copies, buffers = stream._copies, {each.data_ptr(): each.nbytes for each in stream._buffers}
        assert isinstance(copies, CountedCopies)
        assert len(copies.pinned) == 6
        assert all(memory.data_ptr() % PAGE == 0 for memory in copies.pinned)
        model = engine.runner.model
        assert isinstance(model, CausalLM)
        for layer in model.layers:
            assert isinstance(layer.attention, GroupedQueryAttention)
            for linear in (layer.attention.qkv, layer.attention.output):
                assert isinstance(linear, Linear)
                assert linear.weight.untyped_storage().data_ptr() in buffers
                assert linear.weight.storage_offset() * linear.weight.itemsize % ALIGNMENT == 0
        assert sum(buffers.values()) <= least
    assert not copies.pinned
