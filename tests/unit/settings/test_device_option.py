"""The `device` option: the choice of `auto`, and invalid devices."""

import pytest

from baton.engine.config import EngineConfig
from baton.engine.execution.device import gpus_here
from baton.engine.execution.visible_gpus import VisibleGpus, describe_gpus, visible_gpus
from baton.settings.flags import flags_of
from baton.settings.values import OptionError
from baton.worker.device import check_device, require_gpus

NONE, TWO = VisibleGpus(0, "no NVIDIA driver is installed"), describe_gpus(2, has_cuda=True)


def test_without_a_driver_torch_is_not_called() -> None:
    gpus = visible_gpus("libno-such-driver.so.1")
    assert gpus == NONE
    assert gpus.auto_device == "cpu"


def test_with_a_driver_torch_reports_gpus() -> None:
    gpus = visible_gpus("libc.so.6")  # an existing library; the tests hide all GPUs
    assert gpus == gpus_here()
    assert gpus.reason in ("torch sees no GPU", "this build of torch has no CUDA")
    assert (TWO.auto_device, TWO.reason) == ("cuda", "torch sees 2 GPUs")


def test_auto_is_the_default_and_replaced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(model="m")
    assert config.device == "cpu"
    assert config == EngineConfig(model="m", device="auto") == EngineConfig(model="m", device="cpu")
    assert "--device=cpu" in flags_of(config), "a process that is started does not choose again"
    monkeypatch.setattr("baton.engine.config.visible_gpus", lambda: TWO)
    assert EngineConfig(model="m").device == "cuda"
    assert EngineConfig(model="m", device="cpu").device == "cpu"


@pytest.mark.parametrize("device", ["mps", "cuda:", "cuda:x", "gpu", "xpu:0", "CUDA", "cpu:0", ""])
def test_other_devices_are_refused(device: str) -> None:
    with pytest.raises(OptionError, match="is not supported; it must be auto, cpu, cuda or cuda:N"):
        check_device(device)


@pytest.mark.parametrize(
    ("device", "num_ranks", "gpus", "message"),
    [
        ("cpu", 4, NONE, None),
        ("cuda", 2, TWO, None),
        ("cuda:1", 1, TWO, None),
        ("cuda", 1, NONE, "device: cuda needs a GPU, but no NVIDIA driver is installed; use auto or cpu"),
        ("cuda:2", 1, TWO, "device: cuda:2 needs 3 GPUs, but torch sees 2 GPUs"),
        ("cuda:1", 2, TWO, "device: cuda:1 with 2 ranks needs 3 GPUs, but torch sees 2 GPUs"),
    ],
)
def test_gpus_must_exist(device: str, num_ranks: int, gpus: VisibleGpus, message: str | None) -> None:
    check_device(device)
    if message is None:
        require_gpus(device, num_ranks, gpus)
        return
    with pytest.raises(OptionError) as raised:
        require_gpus(device, num_ranks, gpus)
    assert str(raised.value) == message
