"""What this host can read over."""

import os

DEVICES = "/sys/class/infiniband"


def has_rdma_device() -> bool:
    """Whether this host has a device that reads remote memory without a processor's help."""
    return os.path.isdir(DEVICES) and bool(os.listdir(DEVICES))
