"""The files of a router, by its options."""

from dataclasses import dataclass
from pathlib import Path

from baton.router.config import RouterConfig
from baton.router.files.disk import Disk
from baton.router.files.folder import FileFolder
from baton.router.files.quota import FolderLimits
from baton.settings.values import OptionError

MAX_FILE_BYTES = 200 << 20  # as at OpenAI
TENANT_SHARE = 4  # with API keys, a tenant may have 1/4 of the bytes


@dataclass(frozen=True, slots=True)
class FileStore:
    """The folder of files, and the threads in which it is used."""

    folder: FileFolder
    disk: Disk


def open_files(config: RouterConfig) -> FileStore | None:
    """Return the files; None without `files_dir`. Raises OptionError if the folder cannot be created."""
    if config.files_dir is None:
        return None
    tenant_bytes = config.files_bytes // (TENANT_SHARE if config.needs_key else 1)
    limits = FolderLimits(
        file_bytes=min(MAX_FILE_BYTES, tenant_bytes), tenant_bytes=tenant_bytes, max_bytes=config.files_bytes
    )
    try:
        return FileStore(FileFolder(Path(config.files_dir), limits), Disk())
    except OSError as error:
        raise OptionError(f"files_dir: cannot use {config.files_dir}: {error.strerror}") from error
