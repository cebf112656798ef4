"""The directory from which clients may load adapters."""

import logging
from pathlib import Path

from baton.router.adapters.adapter import MAX_PATH_CHARS, is_path
from baton.router.errors import FieldError

logger = logging.getLogger(__name__)

PATH = "lora_path"  # the field of a request


class AdapterDirectory:
    """A directory that router and workers see at the same path. All methods access the file system."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def inside(self, path: str) -> str:
        """Return the path of a directory in this one, without symbolic links below it; `path` may be relative to it.

        Raises FieldError for anything else.
        """
        given = Path(path)
        if not is_path(path) or ".." in given.parts:
            raise FieldError(PATH, f"{PATH} must be a path of at most {MAX_PATH_CHARS} characters, without `..`")
        found = self._resolved(given)
        if found is None:
            raise FieldError(PATH, f"{PATH} must be a directory in the one that this server allows (--lora-dir)")
        return str(found)

    def find(self, name: str) -> str | None:
        """Return the path of the adapter with a valid name; None if the directory has no such adapter."""
        found = self._resolved(Path(name))
        return None if found is None else str(found)

    def _resolved(self, given: Path) -> Path | None:
        """Return the path in this directory; None if it is no directory or lies outside, also by a symbolic link."""
        try:
            root = self._path.resolve(strict=True)
            found = (self._path / given).resolve(strict=True)
            if not found.is_dir() or found == root or not found.is_relative_to(root):
                return None
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links that form a loop
            logger.debug("%s is not in %s: %s", given, self._path, error)
            return None
        return self._path / found.relative_to(root)
