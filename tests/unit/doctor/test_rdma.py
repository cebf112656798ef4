"""RDMA devices, in a copy of the kernel's files."""

from pathlib import Path

from baton.doctor.finding import Level
from baton.doctor.rdma import check_rdma, rdma_ports, received_bytes


def add_port(devices: Path, device: str, number: int, state: str, rate: str, words: int | None = None) -> None:
    port = devices / device / "ports" / str(number)
    port.mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    (port / "rate").write_text(f"{rate}\n")
    if words is not None:
        (port / "counters").mkdir()
        (port / "counters" / "port_rcv_data").write_text(f"{words}\n")


def verbs(directory: Path) -> Path:
    directory.mkdir()
    (directory / "uverbs0").touch()
    return directory


def test_no_device_is_ok(tmp_path: Path) -> None:
    (finding,) = check_rdma(rdma_ports(tmp_path / "absent"), tmp_path)
    assert (finding.check, finding.level, finding.found) == ("rdma-devices", Level.OK, "none")
    assert received_bytes(tmp_path / "absent") is None


def test_ports_are_read(tmp_path: Path) -> None:
    add_port(tmp_path / "ib", "mlx5_0", 1, "4: ACTIVE", "100 Gb/sec (4X EDR)", words=1000)
    add_port(tmp_path / "ib", "mlx5_1", 1, "1: DOWN", "2.5 Gb/sec (1X SDR)", words=5)
    first, second = rdma_ports(tmp_path / "ib")
    assert (first.device, first.number, first.is_active, first.bytes_per_s) == ("mlx5_0", 1, True, 12.5e9)
    assert not second.is_active
    assert received_bytes(tmp_path / "ib") == 4020
    (finding,) = check_rdma([first, second], verbs(tmp_path / "verbs"))  # a second port without a cable is common
    assert finding.level is Level.OK
    assert "mlx5_0 port 1 ACTIVE at 100 Gb/s" in finding.found


def test_ports_that_are_down_or_out_of_reach_fail(tmp_path: Path) -> None:
    add_port(tmp_path / "ib", "mlx5_0", 1, "1: DOWN", "garbled")
    findings = check_rdma(rdma_ports(tmp_path / "ib"), tmp_path / "absent")
    assert [finding.check for finding in findings] == ["rdma-port-inactive", "rdma-access"]
    assert {finding.level for finding in findings} == {Level.FAILURE}
    assert received_bytes(tmp_path / "ib") is None
