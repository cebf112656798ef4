"""Validation of the `device` option, for all commands that start engines."""

import re

from baton.engine.execution.visible_gpus import VisibleGpus
from baton.settings.values import OptionError, shown

DEVICE = re.compile(r"cpu|cuda(:\d{1,4})?")


def check_device(device: str) -> None:
    """Raise OptionError unless engines support such a device."""
    if DEVICE.fullmatch(device) is None:
        raise OptionError(f"device: {shown(device)} is not supported; it must be auto, cpu, cuda or cuda:N")


def require_gpus(device: str, num_ranks: int, gpus: VisibleGpus) -> None:
    """Raise OptionError unless there are enough GPUs for a worker, whose ranks use consecutive ones."""
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return
    num_needed = int(index or 0) + num_ranks
    if not gpus.count:
        raise OptionError(f"device: {device} needs a GPU, but {gpus.reason}; use auto or cpu")
    if num_needed > gpus.count:
        ranks = f" with {num_ranks} ranks" if num_ranks > 1 else ""
        raise OptionError(f"device: {device}{ranks} needs {num_needed} GPUs, but {gpus.reason}")
