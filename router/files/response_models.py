"""Bodies of responses for /openapi.json."""

from typing import Literal

from typing_extensions import TypedDict


class FileObject(TypedDict):
    """A stored file."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]
    expires_at: int | None


class FileList(TypedDict):
    """A page of files."""

    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(TypedDict):
    """A file that was deleted."""

    id: str
    object: Literal["file"]
    deleted: bool
