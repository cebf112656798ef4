"""How CUDA is asked for streams and locked memory; it is written down here, since there may be no GPU to ask."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from baton.kvtransfer.cuda_streams import SideStreams, on, side_stream, unregister_host_memory

GPU = torch.device("cuda", 1)


class Stream:
    """What torch would hand out."""

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        self.device = device
        self.priority = priority


def test_streams_are_of_another_priority_than_the_engines_and_nccls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    stream = side_stream(GPU)
    assert (stream.device, stream.priority) == (GPU, -1)


def test_streams_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_process_on_a_cpu_asks_nothing_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_stream: object) -> None:
        pytest.fail("CUDA was asked, which starts it up")

    monkeypatch.setattr(torch.cuda, "stream", refuse)
    with on(None):
        pass


def test_memory_is_unlocked_in_its_gpus_context(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    cudart = SimpleNamespace(cudaHostUnregister=lambda address: asked.append("unlocked"))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(torch.cuda, "device", lambda device: asked.append(device) or nullcontext())
    unregister_host_memory(torch.zeros(4), GPU)
    assert asked == [GPU, "unlocked"]
