"""Directories of Unix sockets: no other user may enter them, or provide them."""

import os
import stat
from pathlib import Path

import pytest

from baton.process.child import make_private_dir

NOBODY = 65534


def test_a_missing_directory_is_made_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "sockets"
    before = os.umask(0)
    try:
        make_private_dir(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    (path / "worker").touch()
    make_private_dir(path)
    assert (path / "worker").exists()


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("directory")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("file", "link", "dangling"):
        with pytest.raises(FileExistsError, match="it is not a directory of this user"):
            make_private_dir(tmp_path / name)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (path := tmp_path / "sockets").mkdir()
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(FileExistsError, match="it is not a directory of this user"):
        make_private_dir(path)
