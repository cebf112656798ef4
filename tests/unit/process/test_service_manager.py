"""Reports as systemd receives them."""

import secrets
import socket
import threading
from pathlib import Path

import pytest

from baton.process.service_manager import ServiceManager


@pytest.mark.parametrize("is_abstract", [False, True])
def test_reports_arrive_at_the_socket_that_children_do_not_inherit(tmp_path: Path, is_abstract: bool) -> None:
    name = f"baton-{secrets.token_hex(8)}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name}" if is_abstract else name)
        environment = {"NOTIFY_SOCKET": f"@{name}" if is_abstract else name, "HOME": "/"}
        manager = ServiceManager.take(environment)
        assert environment == {"HOME": "/"}
        manager.status("loading\nREADY=1")
        manager.ready("Serving at http://x")
        manager.stopping()
        received = [systemd.recv(1000) for _ in range(3)]
    assert received == [b"STATUS=loading", b"READY=1\nSTATUS=Serving at http://x", b"STOPPING=1"]


def test_without_a_manager_or_after_its_end_nothing_happens(tmp_path: Path) -> None:
    for environment in ({}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": str(tmp_path / "gone")}):
        ServiceManager.take(environment).ready("serving")


def test_the_report_that_it_is_ready_waits_for_a_manager_that_is_behind(tmp_path: Path) -> None:
    """Linux keeps about ten reports, so those of a large cluster's start may fill the queue."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(10)
        manager = ServiceManager(str(tmp_path / "notify"))
        for _ in range(1000):
            manager.status("loading")
        reporting = threading.Thread(target=manager.ready, args=["serving"])
        reporting.start()
        while systemd.recv(1000) != b"READY=1\nSTATUS=serving":
            pass
        reporting.join()
