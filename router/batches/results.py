"""The results of a batch: its journal, which becomes an output and an error file."""

import time

from baton.router.batches.folder import OwnedBatch
from baton.router.batches.journal import CONTENT, ERRORS, OUTPUT
from baton.router.files.folder import FileFolder
from baton.router.files.record import FileRecord


def result_sizes(owned: OwnedBatch) -> list[int]:
    """Return the bytes of the output and of the errors, 0 without any; blocks."""
    paths = [owned.folder / name / CONTENT for name in (OUTPUT, ERRORS)]
    return [path.stat().st_size if path.exists() else 0 for path in paths]


def publish(owned: OwnedBatch, folder: FileFolder) -> None:
    """Make the results files with the ids of the record; blocks. May be repeated after a crash at any point.

    Raises OSError, also if another router owns the batch.
    """
    record = owned.record
    owned.check_owner()
    for name, file_id in ((OUTPUT, record.output_file_id), (ERRORS, record.error_file_id)):
        path = owned.folder / name
        if file_id is None or not path.exists():
            continue  # empty, or published by an earlier attempt
        now_s = int(time.time())
        file = FileRecord(
            id=file_id,
            filename=f"{record.id}_{name}.jsonl",
            purpose="batch_output",
            num_bytes=(path / CONTENT).stat().st_size,
            created_at=now_s,
            expires_at=None if record.output_expires_s is None else now_s + record.output_expires_s,
        )
        folder.adopt(owned.tenant, path, file)
