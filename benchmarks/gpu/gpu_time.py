"""Busy time of a device."""

from collections.abc import Callable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile


def busy_seconds(call: Callable[[], object], device: torch.device) -> float | None:
    """Return the device time of all kernels and copies of a call, counting overlaps once.

    None if the profiler sees none: on a CPU, or without permission to use the driver's counters.
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
