"""Paths of the page: `/docs` and its files. Swagger UI shows `/openapi.json`; nothing is loaded from other hosts."""

from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from baton.router.console.assets import SECURITY_HEADERS
from baton.router.http.built_page import BuiltPage, is_built

BUILT = Path(__file__).parent / "built"
DOCS = "/docs"
ASSETS = f"{DOCS}/assets/"
HEADERS: Mapping[str, str] = {
    **SECURITY_HEADERS,
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",  # Swagger UI sets styles in elements
}


def docs_routes() -> list[Route]:
    """Return the routes; none if the page is missing in this installation."""
    if not is_built(BUILT):
        return []
    files = BuiltPage(BUILT, HEADERS)

    async def page(_request: Request) -> Response:
        return files.page()

    async def asset(request: Request) -> Response:
        return files.asset(request.path_params["name"])

    async def redoc(_request: Request) -> Response:
        return RedirectResponse(DOCS.removeprefix("/"), 307)  # relative: a proxy may add a prefix

    return [Route(DOCS, page), Route(f"{ASSETS}{{name}}", asset), Route("/redoc", redoc)]
