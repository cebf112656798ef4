"""Log files that Ray Serve writes as JSON, in its own code, read by `baton logs`."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from baton.__main__ import main

WRITE = """
import sys
from ray._private.log import generate_logging_config
from ray.serve._private.common import ServeComponentType
from ray.serve._private.logging_utils import configure_component_logger
from ray.serve.schema import LoggingConfig
import logging

generate_logging_config()  # as ray.init does
kinds = {"decode": ServeComponentType.REPLICA, "controller": None}
for name, kind in kinds.items():
    config = LoggingConfig(encoding="JSON", logs_dir=sys.argv[1])
    configure_component_logger(
        component_name=name, component_id="x1", component_type=kind, logging_config=config, max_bytes=0, backup_count=0
    )
    logger = logging.getLogger("ray.serve")
    logger.info("starts")
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("ray.serve.baton").exception("it failed")
    logging.shutdown()
"""


@pytest.mark.slow
def test_files_of_serve_are_read_as_logs(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WRITE, str(tmp_path)], check=True, timeout=120, stderr=subprocess.PIPE)
    shown = CliRunner().invoke(main, ["logs", str(tmp_path), "--pool", "decode", "--since", "1d"])
    heads = [line.split(" ", 1)[1] for line in shown.output.splitlines() if line.startswith("2")]
    assert heads == ["INFO    decode-x1 ray.serve: starts", "ERROR   decode-x1 ray.serve: it failed"]
    assert shown.output.endswith("ValueError: no\n")
    assert "controller-x1 ray.serve: starts" in CliRunner().invoke(main, ["logs", str(tmp_path)]).output
