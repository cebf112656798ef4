"""The private directory of an LLM's processes, and the places in it."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp

from baton.rpc.unix_sockets import socket_parent
from baton.settings.values import OptionError

CONFIG = "config.json"
SOCKETS = "sockets"
LOGS = "logs"
CLUSTER_LOG = "cluster.log"


def make_directory(content: Mapping[str, object], log_dir: str | None) -> tuple[Path, Path]:
    """Make a private directory with a config file, and return it and the directory of the logs.

    Raises OptionError if logs cannot be written.
    """
    text = json.dumps(content)
    if log_dir is not None:
        _make_log_dir(Path(log_dir))
    directory = Path(mkdtemp(prefix="baton-llm-", dir=socket_parent()))
    logs = directory / LOGS if log_dir is None else Path(log_dir)
    try:
        (directory / CONFIG).write_text(text)
        logs.mkdir(exist_ok=True)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return directory, logs


def _make_log_dir(logs: Path) -> None:
    try:
        logs.mkdir(parents=True, exist_ok=True)
        (logs / CLUSTER_LOG).touch()
    except OSError as error:
        raise OptionError(f"log_dir: cannot write logs to {logs}: {error.strerror}") from error
