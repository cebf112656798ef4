"""Calls to CUDA for streams and pinned memory, with stubs, since there may be no GPU."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from baton.kvtransfer.cuda_streams import SideStreams, on, side_stream, unregister_host_memory

GPU = torch.device("cuda", 1)


class Stream:
    """Stub of torch's stream."""

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        self.device = device
        self.priority = priority


def test_side_streams_differ_in_priority_from_the_engines_and_nccls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    stream = side_stream(GPU)
    assert (stream.device, stream.priority) == (GPU, -1)


def test_streams_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    streams = SideStreams(GPU)
    first, second = streams.take(), streams.take()
    assert first is not second
    streams.give_back(first)
    assert streams.take() is first
    none = SideStreams(torch.device("cpu"))
    assert none.take() is None
    none.give_back(None)
    assert none.take() is None


def test_a_cpu_process_does_not_touch_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_stream: object) -> None:
        pytest.fail("CUDA was asked, which starts it up")

    monkeypatch.setattr(torch.cuda, "stream", refuse)
    with on(None):
        pass


def test_memory_is_unpinned_in_its_gpus_context(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    cudart = SimpleNamespace(cudaHostUnregister=lambda address: asked.append("unlocked"))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(torch.cuda, "device", lambda device: asked.append(device) or nullcontext())
    unregister_host_memory(torch.zeros(4), GPU)
    assert asked == [GPU, "unlocked"]
