"""Directory for state that outlives a command, private to the user."""

from collections.abc import Mapping
from pathlib import Path

from baton.process.child import make_private_dir

OTHERS = 0o077  # permissions of other users


def state_directory(environment: Mapping[str, str]) -> Path:
    """Return `baton` in $XDG_STATE_HOME, by default ~/.local/state. A relative path is ignored, as XDG demands."""
    given = Path(environment.get("XDG_STATE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".local" / "state") / "baton"


def make_state_directory(path: Path, parent: Path) -> None:
    """Make a directory and those between it and `parent`, which only this user can enter.

    Raises OSError if one cannot be made, or is another user's.
    """
    parent.parent.mkdir(parents=True, exist_ok=True)
    for each in (*reversed([each for each in path.parents if each.is_relative_to(parent)]), path):
        make_private_dir(each)
        if each.stat().st_mode & OTHERS:
            each.chmod(0o700)
