"""A page that scripts/build_console.sh built: its files, and how long browsers may keep them."""

from collections.abc import Mapping
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import Response

from baton.router.openai.errors import error_response

MEDIA_TYPES: Mapping[str, str] = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
FOREVER = "public, max-age=31536000, immutable"  # of files whose names have hashes of their contents


def is_built(directory: Path) -> bool:
    """Return whether the page was installed; a package of others may lack it."""
    return (directory / "index.html").is_file()


class BuiltPage:
    """The built files of one page, read once."""

    def __init__(self, directory: Path, headers: Mapping[str, str]) -> None:
        """`headers`: of all responses."""
        self._headers = headers
        self._page = (directory / "index.html").read_bytes()
        self._assets = {path.name: path.read_bytes() for path in (directory / "assets").iterdir() if path.is_file()}

    def page(self) -> Response:
        """Return the page."""
        return Response(self._page, headers={**self._headers, "cache-control": "no-cache"}, media_type="text/html")

    def asset(self, name: str) -> Response:
        """Return a file that the page loads, or 404."""
        content = self._assets.get(name)
        media_type = MEDIA_TYPES.get(Path(name).suffix)
        if content is None or media_type is None:
            return error_response(HTTPException(404, f"The page has no file {name[:100]!r}."))
        caching = FOREVER if name.encode() in self._page else "no-cache"
        return Response(content, headers={**self._headers, "cache-control": caching}, media_type=media_type)
