"""The table of a model's adapters, by the router's options."""

import hashlib
from pathlib import Path

from baton.router.adapters.table import AdapterTable, DirectoryTable, MemoryTable
from baton.router.config import RouterConfig
from baton.settings.registry_url import parse_registry_url


def open_table(config: RouterConfig, model_name: str) -> AdapterTable:
    """Return the table, without a connection yet."""
    if config.registry is not None:
        from baton.router.adapters.redis_table import RedisTable  # its client is heavy, and few routers need it

        return RedisTable(parse_registry_url(config.registry), model_name)
    directory = config.adapters_dir or config.group_dir
    if directory is None:
        return MemoryTable()
    return DirectoryTable(Path(directory) / f"adapters-{hashlib.sha256(model_name.encode()).hexdigest()[:16]}")
