"""How long a device computed, as opposed to how long somebody waited for it."""

from collections.abc import Callable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile


def busy_seconds(call: Callable[[], object], device: torch.device) -> float | None:
    """The time of all kernels and copies that the call had the device do, overlapping ones counted once.

    None where the profiler sees none: on a CPU, or without the right to ask the driver.
    """
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        call()
        torch.cuda.synchronize(device)
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiled.events()
        if event.device_type == DeviceType.CUDA
    )
    busy_us, last = 0.0, float("-inf")
    for start, end in spans:
        busy_us += max(0.0, end - max(start, last))
        last = max(last, end)
    return busy_us / 1e6 if spans else None
