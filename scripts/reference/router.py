"""A router of the bundled model in this process, which serves nothing: what the tables of its API are read from."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from baton.cli.options.model_source import BUNDLED
from baton.router.config import RouterConfig
from baton.router.http.app import HttpApp, make_http_app
from baton.router.service import RouterService, make_service

Result = TypeVar("Result")


def read_router(read: Callable[[RouterService, HttpApp], Result]) -> Result:
    """Return what `read` returns of a router that has files, batches and supervised processes."""

    async def main(directory: Path) -> Result:
        states = directory / "states.json"
        states.write_text(json.dumps([{"name": "router"}]))
        config = RouterConfig(
            model=str(BUNDLED), workers=("127.0.0.1:1",), files_dir=str(directory), process_states=(str(states),)
        )
        service = make_service(config)
        app = make_http_app(service)
        try:
            return await asyncio.to_thread(read, service, app)
        finally:
            app.close()
            assert service.files is not None
            service.files.disk.close()
            for model in service.models:
                model.tokenizer.close()
                await model.images.close()

    with TemporaryDirectory() as directory:
        return asyncio.run(main(Path(directory)))
