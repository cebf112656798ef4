"""The upload of one file: multipart/form-data, written to the folder as it arrives."""

from collections.abc import AsyncIterator

from baton.router.errors import FieldError
from baton.router.files.folder import IncomingFile
from baton.router.files.multipart import MultipartParser, PartBegin, PartData
from baton.router.files.record import FileRecord, TenantId
from baton.router.files.store import FileStore

WRITE_BYTES = 1 << 20  # written to the disk at once
MAX_FIELD_BYTES = 256
PURPOSE = "batch"
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 2592000


class Upload:
    """The fields and the file of one body."""

    def __init__(self, files: FileStore, tenant: TenantId, boundary: bytes) -> None:
        self._files = files
        self._tenant = tenant
        self._parser = MultipartParser(boundary)
        self._fields: dict[str, bytes] = {}
        self._part = ""
        self._filename: str | None = None
        self._unwritten = bytearray()

    async def receive(self, body: AsyncIterator[bytes], num_bytes: int) -> FileRecord:
        """Store the file of a body, which has about `num_bytes` if that is not 0. Raises FieldError or FolderLost.

        A cancelled caller waits for the threads that use the file, which is closed then.
        """
        disk = self._files.disk
        incoming = await disk.run(lambda: self._files.folder.begin(self._tenant, num_bytes), uses_quota=True)
        try:
            async for chunk in body:
                for event in self._parser.feed(chunk):
                    self._add(event)
                if len(self._unwritten) >= WRITE_BYTES:
                    await self._write(incoming)
            expires_s = self._check()
            await self._write(incoming)
            filename = self._filename or ""
            return await disk.run_to_end(lambda: incoming.commit(filename, PURPOSE, expires_s), uses_quota=True)
        except BaseException:
            await disk.run(incoming.abort, uses_quota=True)
            raise

    def _add(self, event: PartBegin | PartData) -> None:
        if isinstance(event, PartData):
            if self._part == "file":
                self._unwritten += event.data
                return
            self._fields[self._part] += event.data
            if len(self._fields[self._part]) > MAX_FIELD_BYTES:
                raise FieldError(self._part, f"{self._part}: must have at most {MAX_FIELD_BYTES} bytes")
            return
        name = event.name
        if name not in ("file", "purpose", ANCHOR, SECONDS):
            raise FieldError(name[:64], f"Unrecognized request argument supplied: {name[:64]}", "unknown_parameter")
        if name in self._fields or (name == "file" and self._filename is not None):
            raise FieldError(name, f"{name}: must be given once")
        self._part = name
        if name == "file":
            self._filename = event.filename or "file"
        else:
            self._fields[name] = b""

    async def _write(self, incoming: IncomingFile) -> None:
        data, self._unwritten = bytes(self._unwritten), bytearray()
        if data:
            await self._files.disk.run_to_end(lambda: incoming.write(data), uses_quota=True)

    def _check(self) -> int | None:
        """Return the seconds until the file expires. Raises FieldError if a field is missing or invalid."""
        if not self._parser.is_complete:
            raise FieldError("file", "the body is no complete multipart/form-data: its last boundary is missing")
        if self._filename is None:
            raise FieldError("file", "file: is missing")
        if (purpose := self._fields.get("purpose")) != PURPOSE.encode():
            shown = "missing" if purpose is None else repr(purpose[:50].decode("utf-8", "replace"))
            raise FieldError(
                "purpose", f"purpose: is {shown}, but this server stores files for batches alone: '{PURPOSE}'"
            )
        anchor, seconds = (self._fields.get(name, b"").decode("latin-1") for name in (ANCHOR, SECONDS))
        if not anchor and not seconds:
            return None
        is_number = seconds.isascii() and seconds.isdecimal() and len(seconds) < 10
        if anchor != "created_at" or not (is_number and MIN_EXPIRY_S <= int(seconds) <= MAX_EXPIRY_S):
            text = f"needs the anchor created_at and {MIN_EXPIRY_S} to {MAX_EXPIRY_S} seconds"
            raise FieldError("expires_after", f"expires_after: {text}")
        return int(seconds)
