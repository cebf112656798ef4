"""Opening of a worker's stores: which options are refused, and what is left of those that were opened."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from baton.engine.config import EngineConfig
from baton.engine.kv.groups import KVGroups
from baton.kvtransfer.block_slice import PartGroup
from baton.kvtransfer.store import shared_memory_directory
from baton.settings.values import OptionError
from baton.worker.base import NO_STORES, Stores
from baton.worker.config import WorkerConfig
from baton.worker.kv.open_stores import open_stores
from baton.worker.kv.tiers import KVTiers
from baton.worker.reporting import WorkerCounters

ENGINE = EngineConfig(model="model", kv_cache_memory_bytes=1 << 20)


def config(**options: Any) -> WorkerConfig:
    return WorkerConfig(role="both", worker_id="worker", engine=ENGINE, **options)


def opened(options: WorkerConfig, counters: WorkerCounters) -> Stores:
    host = SimpleNamespace(
        kv_groups=KVGroups(16),
        origin=SimpleNamespace(fingerprint="3-abc"),
        config=options.engine,
        ranks=SimpleNamespace(parts=PartGroup(1, 1)),
    )
    return open_stores(options, cast(Any, host), torch.zeros(4, 64), counters)


@pytest.fixture
def host_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "shm"
    path.mkdir()
    monkeypatch.setattr(shared_memory_directory.shared_memory_directory, "__defaults__", (path,))
    return path


async def test_the_stores_are_opened_in_the_order_of_their_speed(tmp_path: Path, host_memory: Path) -> None:
    counters = WorkerCounters()
    assert opened(config(), counters) is NO_STORES
    for name in ("disk", "shared"):
        (tmp_path / name).mkdir()
    options = config(
        kv_host_memory_bytes=1 << 16,
        kv_disk=str(tmp_path / "disk"),
        kv_disk_bytes=1 << 17,
        kv_store=str(tmp_path / "shared"),
        kv_store_bytes=1 << 18,
    )
    stores = opened(options, counters)
    assert isinstance(stores, KVTiers)
    found = [(name, tier.capacity_bytes) for name, tier in counters.tiers.items()]
    assert found == [("host", 1 << 16), ("disk", 1 << 17), ("shared", 1 << 18)]
    assert list(host_memory.iterdir())
    await stores.close()
    assert not list(host_memory.iterdir())


@pytest.mark.parametrize(
    ("disk", "key", "message"),
    [("missing/directory", "5a" * 32, "no such directory; create it"), (".", "short", "must have 32 bytes")],
)
def test_a_store_that_cannot_be_opened_leaves_none_open(
    tmp_path: Path, host_memory: Path, disk: str, key: str, message: str
) -> None:
    """Otherwise the host memory of a worker that did not start would stay in use."""
    key_file = tmp_path / "key"
    key_file.write_text(key)
    key_file.chmod(0o600)
    options = config(kv_host_memory_bytes=1 << 16, kv_disk=str(tmp_path / disk), kv_store_key_file=str(key_file))
    with pytest.raises(OptionError, match=message):
        opened(options, WorkerCounters())
    assert not list(host_memory.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_disk": "redis://u:p@host"}, r"^kv_disk: redis:// is not a directory; set a path, or kv_store for"),
        (
            {"kv_disk": "kv", "kv_store": "./x/../kv"},
            "^kv_store: ./x/../kv is the directory of kv_disk, too; leave out",
        ),
        ({"kv_disk": "/kv/", "kv_store": "file:///kv"}, "^kv_store: /kv is the directory of kv_disk, too; leave out"),
        ({"kv_store_key_file": "key"}, "^kv_store_key_file: nothing to encrypt; set kv_disk or kv_store too"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        config(**options)
