"""The directory for state: where it is, and that it is private."""

import stat
from pathlib import Path

from baton.process.state_directory import make_state_directory, state_directory


def test_it_follows_xdg(tmp_path: Path) -> None:
    default = Path.home() / ".local" / "state" / "baton"
    assert state_directory({"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "baton"
    assert state_directory({}) == state_directory({"XDG_STATE_HOME": "relative"}) == default


def test_it_becomes_private(tmp_path: Path) -> None:
    parent = tmp_path / "state" / "baton"
    parent.mkdir(parents=True, mode=0o755)
    make_state_directory(parent / "servers" / "one", parent)
    made = (parent, parent / "servers", parent / "servers" / "one")
    assert [stat.S_IMODE(each.stat().st_mode) for each in made] == [0o700] * 3
    assert stat.S_IMODE(tmp_path.joinpath("state").stat().st_mode) != 0o700
