"""`baton cache` against a real HTTP server, and with real stores."""

import fcntl
import os
import time
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from baton.__main__ import main
from baton.kvtransfer.store.factory import open_store
from tests.unit.cli.small_server import json_reply, serving
from tests.unit.cli.test_cli_status import WORKERS
from tests.unit.kvtransfer.store.store_rig import NAMESPACE, read, write

CAPACITY = 1 << 20


def cache(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["cache", *map(str, arguments)])


def with_server(replies: dict[str, Any], *arguments: object) -> Result:
    with serving({path: lambda _, each=reply: each for path, reply in replies.items()}) as url:
        return cache(*arguments, "--url", url)


def test_stats_show_each_worker_and_its_stores() -> None:
    load = {"num_cached_tokens": 300, "num_looked_up_tokens": 400, "num_pins": 2, "num_pinned_blocks": 20}
    worker = {**WORKERS["workers"][0], "load": load, "block_bytes": 1000}
    result = with_server({"/workers": json_reply({"workers": [worker]})}, "stats")
    assert result.exit_code == 0, result.output
    header, pool, host, redis = (line.split() for line in result.output.splitlines())
    assert header[:2] == ["worker", "tier"]
    assert pool == ["prefill-0", "kv_cache", "8", "8000", "300", "tokens", "(75%)", "2", "20"]
    assert host == ["host", str(3 << 29), *["5", "blocks", "6", "blocks"]]
    assert redis == ["redis", *["0", "blocks", "6", "blocks"]]
    as_json = with_server({"/workers": json_reply({"workers": [worker]})}, "stats", "--json")
    assert '"num_pinned_blocks": 20' in as_json.output


def test_clear_shows_what_was_forgotten_or_why_not() -> None:
    done = with_server({"/reset_prefix_cache": json_reply({"blocks": {"both-0": 3}})}, "clear")
    assert (done.exit_code, done.output) == (0, "both-0: 3 blocks forgotten\n")
    refused = with_server({"/reset_prefix_cache": json_reply({"error": {"message": "no admin"}}, 403)}, "clear")
    assert refused.exit_code == 1
    assert "403: no admin" in refused.output


def test_old_weights_files_are_shown_and_deleted(tmp_path: Path) -> None:
    digest = "0123456789abcdef" * 2
    for name, age_days in (("old", 40), ("new", 0), ("read", 50)):
        path = tmp_path / f"{name}-{digest}.weights"
        path.write_bytes(bytes(10_000_000))
        os.utime(path, (time.time() - age_days * 86400,) * 2)
    with (tmp_path / f"read-{digest}.weights").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        shown = cache("weights", "--dir", tmp_path, "--unused-days", 30)
        assert shown.exit_code == 0, shown.output
        read, old, new, total = shown.output.splitlines()
        assert read.startswith(f"read-{digest}.weights: 0.01 GB, last read ")
        assert [line.rpartition(", ")[2] for line in (read, old, new)] == ["in use", "unused", "kept"]
        assert total == f"{tmp_path}: 1 of 3 files, 0.01 GB, would be deleted with --delete"
        deleted = cache("weights", "--dir", tmp_path, "--unused-days", 30, "--delete")
    assert f"old-{digest}.weights: 0.01 GB" in deleted.output
    assert deleted.output.endswith("1 of 3 files, 0.01 GB, deleted\n")
    assert sorted(each.name for each in tmp_path.iterdir()) == [f"new-{digest}.weights", f"read-{digest}.weights"]
    none = cache("weights", "--dir", tmp_path / "missing")
    assert none.exit_code == 0
    assert none.output.endswith("0 of 0 files, 0.00 GB, would be deleted with --delete\n")


def test_an_export_is_imported_for_the_workers_that_can_use_it(tmp_path: Path) -> None:
    source, target, export = (tmp_path / name for name in ("source", "target", "export"))
    source.mkdir()
    target.mkdir()
    store = open_store(str(source), NAMESPACE, CAPACITY)
    write(store, *range(5))
    store.close()
    made = cache("export", export, "--from", source)
    assert (made.exit_code, made.output) == (0, f"{NAMESPACE}: 5 blocks, {5 * 1024} bytes\n")
    again = cache("export", export, "--from", source)
    assert (again.exit_code, "has an export already" in again.output) == (1, True)
    none = with_server({"/workers": json_reply({"workers": []})}, "import", export, "--to", target)
    assert (none.exit_code, "has no worker yet" in none.output) == (1, True)
    foreign = json_reply({"workers": [{"worker_id": "a", "fingerprint": "other"}]})
    refused = with_server({"/workers": foreign}, "import", export, "--to", target)
    assert refused.exit_code == 1
    assert f"the export has KV of {NAMESPACE}, but the workers at http" in refused.output
    assert "have other: model" in refused.output
    ours = json_reply({"workers": [{"worker_id": "a", "fingerprint": NAMESPACE}, {"worker_id": None}]})
    added = with_server({"/workers": ours}, "import", export, "--to", target, "--max-bytes", "1MiB")
    assert (added.exit_code, added.output) == (0, f"5 of 5 blocks were added, {5 * 1024} bytes\n")
    known = cache("import", export, "--to", target, "--fingerprint", NAMESPACE)
    assert (known.exit_code, known.output) == (0, "0 of 5 blocks were added, 0 bytes\n")
    store = open_store(str(target), NAMESPACE, CAPACITY)
    assert all(read(store, number) for number in range(5))
    store.close()
    invalid = cache("import", export, "--to", target, "--max-bytes", "much")
    assert (invalid.exit_code, "--max-bytes" in invalid.output) == (2, True)
