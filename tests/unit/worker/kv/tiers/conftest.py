"""Fixtures of stores below a pool."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from baton.engine.kv.block_hash import hash_blocks
from baton.worker.kv.tier import Tier
from baton.worker.kv.tier_price import FetchSpeed
from tests.checkpoints import make_checkpoint
from tests.unit.worker.kv.tiers.tier_rig import BLOCK_SIZE, PROMPT, DictStore, Rig


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a thread may start late, and a model this small computes as fast as it is fetched."""
    monkeypatch.setattr("baton.worker.kv.tiers.LOOKUP_S", 10.0)
    monkeypatch.setattr("baton.worker.kv.tier_price.GRACE_S", 10.0)
    monkeypatch.setattr(FetchSpeed, "pays", lambda *_: True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("tiers") / "model")


@pytest.fixture(scope="module")
def hashes() -> list[bytes]:
    return list(hash_blocks(PROMPT, BLOCK_SIZE))


@pytest_asyncio.fixture
async def filled(model: Path) -> AsyncIterator[tuple[DictStore, list[int]]]:
    """A store with the blocks of a prompt, and the tokens after the prompt."""
    store, rig = DictStore(), Rig(model)
    rig.tiers.append(Tier(store))
    tokens = await rig.generate(PROMPT)
    await rig.saved(store, 10)
    await rig.close()
    yield store, tokens
