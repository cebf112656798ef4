"""Helm, connected to a server."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.helm.api_server.errors import Json
from tests.helm.api_server.server import ApiServer

PER_SECOND = 1000  # requests: by default Helm waits after the first few


class HelmFailed(Exception):
    """Helm's own words."""


class Releases:
    """Owns a process with Helm in it; every method raises HelmFailed."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def install(self, chart: Path, name: str, values: Json, **options: Any) -> Json:
        """The release."""
        return self._do("install", str(chart), name, values, **options)

    def upgrade(self, chart: Path, name: str, values: Json, **options: Any) -> Json:
        """The release's new revision."""
        return self._do("upgrade", str(chart), name, values, **options)

    def rollback(self, name: str, **options: Any) -> None:
        """To the revision before, if none is named."""
        self._do("rollback", name, **options)

    def uninstall(self, name: str) -> Json:
        """What was kept, among others."""
        return self._do("uninstall", name)

    def test(self, name: str, **options: Any) -> Json:
        """What the test hooks said."""
        return self._do("test", name, **options)

    def values(self, name: str) -> Json:
        """Those that the release was given."""
        return self._do("get_values", name)

    def revisions(self, name: str) -> list[int]:
        """All that are known."""
        return [each["revision"] for each in self._do("history", name)]

    def _do(self, action: str, *arguments: Any, **options: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([action, arguments, options]), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise HelmFailed(answer["error"])
        return answer["result"]


@contextmanager
def helm(server: ApiServer, namespace: str = "default") -> Iterator[Releases]:
    """Keeps releases where Helm does, in Secrets of the namespace."""
    connection = {
        "kubeconfig_content": server.kubeconfig(namespace),
        "namespace": namespace,
        "storage_driver": "secret",
        "burst_limit": PER_SECOND,
        "qps": PER_SECOND,
    }
    command = [sys.executable, "-m", "tests.helm.helm_process"]
    with TemporaryDirectory() as home:
        environment = {**os.environ, "HOME": home, "GOGC": "400"}  # less work for Go's garbage collector
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=Path(__file__).resolve().parents[2],
        ) as process:
            assert process.stdin is not None
            print(json.dumps(connection), file=process.stdin, flush=True)
            try:
                yield Releases(process)
            finally:
                process.stdin.close()  # it ends then
