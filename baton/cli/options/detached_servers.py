"""Names of detached servers, for shells that complete them."""

import os
from contextlib import suppress

import click

from baton.deployment.local.detached.folder import server_folders


def complete_names(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of servers that begin with what was typed."""
    with suppress(OSError):
        return [folder.name for folder in server_folders(os.environ) if folder.name.startswith(incomplete)]
    return []
