"""Files of the page, as scripts/build_console.sh builds them, and the headers that browsers protect it by."""

from collections.abc import Mapping
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import Response

from baton.router.openai.errors import error_response

BUILT = Path(__file__).parent / "built"
MEDIA_TYPES: Mapping[str, str] = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
SECURITY_HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
FOREVER = "public, max-age=31536000, immutable"  # of files whose names have hashes of their contents


def is_built(directory: Path = BUILT) -> bool:
    """Return whether the page was installed; a package of others may lack it."""
    return (directory / "index.html").is_file()


class ConsoleAssets:
    """The built files, read once."""

    def __init__(self, directory: Path = BUILT) -> None:
        self._page = (directory / "index.html").read_bytes()
        self._assets = {path.name: path.read_bytes() for path in (directory / "assets").iterdir() if path.is_file()}

    def page(self) -> Response:
        """Return the page."""
        headers = {**SECURITY_HEADERS, "cache-control": "no-cache"}
        return Response(self._page, headers=headers, media_type="text/html")

    def asset(self, name: str) -> Response:
        """Return a file that the page loads, or 404."""
        content = self._assets.get(name)
        media_type = MEDIA_TYPES.get(Path(name).suffix)
        if content is None or media_type is None:
            return error_response(HTTPException(404, f"The console has no file {name[:100]!r}."))
        caching = FOREVER if name.encode() in self._page else "no-cache"
        return Response(content, headers={**SECURITY_HEADERS, "cache-control": caching}, media_type=media_type)
