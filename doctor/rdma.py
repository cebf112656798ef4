"""RDMA devices from /sys/class/infiniband."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from baton.doctor.finding import Finding, failure, ok
from baton.kvtransfer.nixl.rdma import DEVICES

SYSFS = Path(DEVICES)
VERBS = Path("/dev/infiniband")
WORD_BYTES = 4  # port_rcv_data counts words (InfiniBand specification, PortCounters)
# Counters of received data, by the names that drivers use; the value is bytes per count.
COUNTERS = {"counters/port_rcv_data": WORD_BYTES, "hw_counters/rx_bytes": 1}


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """One port of a device."""

    device: str
    number: int
    state: str  # as the kernel names it, such as ACTIVE
    bytes_per_s: float  # 0: unknown

    @property
    def is_active(self) -> bool:
        """Whether its link is up."""
        return self.state == "ACTIVE"

    def __str__(self) -> str:
        return f"{self.device} port {self.number} {self.state} at {self.bytes_per_s * 8 / 1e9:g} Gb/s"


def rdma_ports(devices: Path = SYSFS) -> list[RdmaPort]:
    """Return every port of every device."""
    ports = []
    for directory in sorted(devices.glob("*/ports/*")):
        rate = re.match(r"([\d.]+) Gb/sec", _read(directory / "rate"))
        bytes_per_s = float(rate[1]) * 1e9 / 8 if rate else 0.0
        state = _read(directory / "state").partition(":")[2].strip() or "in an unknown state"
        ports.append(RdmaPort(directory.parent.parent.name, int(directory.name), state, bytes_per_s))
    return ports


def received_bytes(devices: Path = SYSFS) -> int | None:
    """Return the bytes received by all ports since boot; None if no driver has counters."""
    counts = [
        int(text) * size
        for name, size in COUNTERS.items()
        for file in devices.glob(f"*/ports/*/{name}")
        if (text := _read(file)).isdecimal()
    ]
    return sum(counts) if counts else None


def check_rdma(ports: Sequence[RdmaPort], verbs: Path = VERBS) -> list[Finding]:
    """Check that a port is active and that this process may open the device files."""
    if not ports:
        return [ok("rdma-devices", "none")]
    named = ", ".join(str(port) for port in ports)
    findings = []
    if not any(port.is_active for port in ports):
        remedy = "check the cable, the switch and (for InfiniBand) the subnet manager; ibstat shows the port's state"
        findings.append(failure("rdma-port-inactive", named, remedy))
    if not any(os.access(file, os.R_OK | os.W_OK) for file in verbs.glob("uverbs*")):
        findings.append(
            failure(
                "rdma-access",
                f"{named}, but this process may not open {verbs}/uverbs*: UCX would use TCP",
                "docker run --device=/dev/infiniband; in Kubernetes, request the RDMA device plugin's resource",
            )
        )
    return findings or [ok("rdma-devices", named)]


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
