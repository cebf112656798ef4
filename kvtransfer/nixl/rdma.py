"""Detection of RDMA devices."""

import os

DEVICES = "/sys/class/infiniband"


def has_rdma_device() -> bool:
    """Return whether this host has an RDMA device."""
    return os.path.isdir(DEVICES) and bool(os.listdir(DEVICES))
