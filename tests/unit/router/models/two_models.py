"""A router with two models of different vocabularies, each with scripted workers."""

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.unit.router.rigs.running_router import MODEL, RunningRouter, running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

FIRST, OTHER = "bundled_model", "other"
MARK = "<|mark|>"  # a token of the other model alone
MARK_ID = 4096


def other_model(directory: Path) -> Path:
    """Return a copy of the bundled model whose vocabulary has one more token, and a shorter context."""
    model = directory / OTHER
    shutil.copytree(MODEL, model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append(tokenizer["added_tokens"][-1] | {"id": MARK_ID, "content": MARK})
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"vocab_size": MARK_ID + 1}))
    return model


def other_worker(worker_id: str = "decode-1") -> ScriptedWorker:
    """Return a worker of the other model."""
    worker = ScriptedWorker(worker_id)
    worker.model = OTHER
    worker.max_model_len = 128
    worker.script = lambda token_ids, _: 500 + len(token_ids)
    return worker


@asynccontextmanager
async def two_models(directory: Path, *workers: ScriptedWorker, **options: Any) -> AsyncIterator[RunningRouter]:
    """Run a router for both models with these workers, or with one of each."""
    workers = workers or (ScriptedWorker(), other_worker())
    async with running_router(*workers, also_serve=(str(other_model(directory)),), **options) as router:
        yield router
