"""`make audit`: its findings, and its behaviour if the list cannot be read."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from packaging.version import Version

from scripts import audit
from scripts.audit import ADVISORIES, COMPONENTS, ROOT, Advisory, AdvisoryList, Component, main, read_components, stale


class NotFound(BaseHTTPRequestHandler):
    """A package index without any page."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def lost() -> Iterator[str]:
    """Yield the URL of an index that returns 404 for every path."""
    with HTTPServer(("127.0.0.1", 0), NotFound) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_list_that_cannot_be_read_is_a_failure(lost: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--pypi", lost]) == 1
    assert "PyPI's list is unreadable: 404" in capsys.readouterr().out


def test_the_committed_list_is_used_on_request_with_its_date(
    lost: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "OLD_DAYS", 36500)
    assert main(["--pypi", lost, "--fallback"]) == 0
    output = capsys.readouterr().out
    assert f"which has a few of {AdvisoryList.read(ADVISORIES).date}" in output
    assert "days old" not in output
    monkeypatch.setattr(audit, "OLD_DAYS", -1)
    main(["--pypi", lost, "--fallback"])
    assert "days old; renew it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("product", "version", "is_found"),
    [
        ("redis-server", "7.4.2", True),
        ("redis-server", "7.4.6", True),
        ("redis-server", "7.4.9", False),
        ("redis-server", "5.0.14", True),
        ("valkey-server", "8.1.3", True),
        ("valkey-server", "9.1.0", True),
        ("valkey-server", "9.1.2", False),
        ("h11", "0.14.0", True),
    ],
)
def test_known_vulnerabilities_are_found(product: str, version: str, is_found: bool) -> None:
    assert bool(AdvisoryList.read(ADVISORIES).check([Component(product, version)])) == is_found


def test_an_advisory_covers_versions_of_several_branches() -> None:
    advisory = Advisory("a", "CVE-1", ("7.2.6", "8.0.3"), since="7.0")
    versions = ("6.9", "7.0", "7.2.5", "7.2.6", "7.3.9", "8.0.2", "8.0.3", "8.1.0")
    vulnerable = [each for each in versions if advisory.has(Version(each))]
    assert vulnerable == ["7.0", "7.2.5", "7.3.9", "8.0.2"]


def test_an_image_with_a_known_vulnerability_is_a_failure(
    lost: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = {"product": "redis-server", "version": "7.4.2", "file": "helm/baton/values.yaml", "text": "tag:"}
    (tmp_path / "components.json").write_text(json.dumps([image]))
    assert main(["--pypi", lost, "--fallback", "--components", str(tmp_path / "components.json")]) == 1
    assert "redis-server 7.4.2 (helm/baton/values.yaml) has CVE-2025-49844, fixed in" in capsys.readouterr().out


def test_a_changed_or_unknown_component_is_named(tmp_path: Path) -> None:
    component = Component("nothing", "1", "values.yaml", "tag: 1")
    for tag in ("2", "10", "1.0"):
        (tmp_path / "values.yaml").write_text(f"tag: {tag}\n")
        assert stale([component], tmp_path) == [
            "nothing 1 (values.yaml): the file has no 'tag: 1'; update components.json",
        ]
    (tmp_path / "values.yaml").write_text("tag: 1-alpine\n")
    assert stale([component], tmp_path) == []
    assert AdvisoryList.read(ADVISORIES).unknown([component])
    assert stale(read_components(COMPONENTS), ROOT) == []
