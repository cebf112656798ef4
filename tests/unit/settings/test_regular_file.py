"""Only regular files are opened, and nothing else blocks."""

import os
import socket
from pathlib import Path

import pytest

from baton.settings.regular_file import read_regular


def test_a_regular_file_is_read_through_links_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "file") == read_regular(str(tmp_path / "link")) == b"content"


def test_everything_else_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="it is not a regular file") as caught:
        read_regular(tmp_path / "fifo")
    assert caught.value.filename == str(tmp_path / "fifo")
    with pytest.raises(OSError, match="it is not a regular file"):
        read_regular("/dev/zero")
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="No such device"):
            read_regular(tmp_path / "socket")


def test_a_refused_file_leaves_no_descriptor_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with pytest.raises(OSError, match="not a regular file"):
            read_regular(tmp_path / "fifo")
    assert len(os.listdir("/proc/self/fd")) == before
