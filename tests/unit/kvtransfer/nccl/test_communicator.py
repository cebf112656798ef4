"""One communicator, and its configuration of torch and NCCL."""

import logging
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

from baton.kvtransfer.errors import TransportUnavailable
from baton.kvtransfer.nccl import communicator
from baton.kvtransfer.nccl import transport as nccl
from baton.kvtransfer.nccl.communicator import BLOCKING_WAIT, MAX_CTAS, PairGroup, load_kernels
from baton.kvtransfer.nccl.transport import PairBackend
from tests.unit.kvtransfer.kv_peers import HOST


def test_a_failed_abort_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    group = PairGroup.__new__(PairGroup)

    def abort() -> None:
        raise RuntimeError("NCCL error: unhandled system error\nframes")

    group._group = SimpleNamespace(abort=abort)
    group.abort()
    group.abort()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "cannot abort a communicator: NCCL error: unhandled system error"


@pytest.mark.parametrize("value", ["0", "false", "", "perhaps"])
def test_nccl_is_unavailable_if_torch_would_end_the_process(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "nccl_type", lambda: None)
    monkeypatch.setenv(BLOCKING_WAIT, value)
    with pytest.raises(TransportUnavailable, match=r"TORCH_NCCL_BLOCKING_WAIT is .*unset it, or set it to 1"):
        PairBackend(HOST)
    monkeypatch.setenv(BLOCKING_WAIT, "Yes")
    PairBackend(HOST)


def test_a_communicator_over_nccl_uses_few_gpu_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the options passed to NCCL, with a stub, since there may be no GPU."""
    made: list[SimpleNamespace] = []

    class Group:
        def __init__(self, _store: object, rank: int, size: int, options: SimpleNamespace) -> None:
            assert (rank, size) == (1, 2)
            made.append(options)

        @staticmethod
        def Options(is_high_priority_stream: bool = False) -> SimpleNamespace:  # noqa: N802
            return SimpleNamespace(is_high_priority_stream=is_high_priority_stream, config=SimpleNamespace())

        def eager_connect_single_device(self, device: torch.device) -> None:
            assert device.index == 1

    monkeypatch.setattr(communicator, "nccl_type", lambda: Group)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    store = torch.distributed.HashStore()
    communicator._nccl(store, 1, HOST, torch.device("cuda", 1), timedelta(seconds=3))
    (options,) = made
    assert options.is_high_priority_stream
    assert options.config.max_ctas == MAX_CTAS
    assert options._timeout == timedelta(seconds=3)


def test_loading_kernels_changes_nothing() -> None:
    rows = torch.arange(64, dtype=torch.uint8).view(4, 16)
    load_kernels(rows)
    assert rows.flatten().tolist() == list(range(64))
