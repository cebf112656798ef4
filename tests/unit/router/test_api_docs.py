"""The page of the API's description: it loads the router's own files alone."""

import re

from tests.unit.router.rigs.running_router import running_router


async def test_the_page_loads_nothing_from_other_hosts() -> None:
    async with running_router(api_key=("secret",), protect_operations=True) as router:
        page = await router.http.get("/docs")
        assert page.status_code == 200
        policy = dict(each.strip().split(" ", 1) for each in page.headers["content-security-policy"].split(";"))
        assert (policy["default-src"], policy["script-src"], policy["connect-src"]) == ("'none'", "'self'", "'self'")
        assert not re.search(r"https?://|<script>", page.text)
        names = re.findall(r'(?:src|href)="(docs/[^"]+)"', page.text)
        assert len(names) == 2
        for name in names:
            asset = await router.http.get(f"/{name}")
            assert asset.status_code == 200
            assert "immutable" in asset.headers["cache-control"]
        licenses = (await router.http.get("/docs/assets/licenses.txt")).text
        assert all(name in licenses for name in ("Swagger UI", "SmartBear", "React", "DOMPurify"))
        assert (await router.http.get("/docs/assets/none.js")).status_code == 404
        assert (await router.http.get("/openapi.json")).status_code == 401  # the page itself reveals nothing
        alias = await router.http.get("/redoc")
        assert alias.next_request is not None
        assert alias.next_request.url == f"{router.url}/docs"


async def test_the_page_is_there_without_the_console() -> None:
    async with running_router(console=False) as router:
        assert (await router.http.get("/docs")).status_code == 200
