"""Batches through the real client."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from openai import AsyncOpenAI
from openai.types import Batch

MODEL = "bundled_model"
CHAT = "/v1/chat/completions"
DEADLINE_S = 60.0
ENDED = ("completed", "failed", "expired", "cancelled")


def chat_line(custom_id: str, text: str = "What time?", **options: Any) -> dict[str, Any]:
    """Return a line with a chat request."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 8, **options}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def encoded(lines: Iterable[Any]) -> bytes:
    """Return the file of these lines; bytes stay as they are."""
    return b"".join((each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n" for each in lines)


async def start(client: AsyncOpenAI, lines: Iterable[Any], **options: Any) -> Batch:
    """Upload the lines and create a batch of them."""
    file = await client.files.create(file=("in.jsonl", encoded(lines)), purpose="batch")
    fields: Any = {"endpoint": CHAT, "completion_window": "24h", **options}
    return await client.batches.create(input_file_id=file.id, **fields)


async def ended(client: AsyncOpenAI, batch: Batch) -> Batch:
    """Wait until the batch has ended."""
    async with asyncio.timeout(DEADLINE_S):
        while batch.status not in ENDED:
            await asyncio.sleep(0.02)
            batch = await client.batches.retrieve(batch.id)
    return batch


async def results(client: AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    """Return the lines of an output or error file by custom id, each of which must be unique."""
    if file_id is None:
        return {}
    text = (await client.files.content(file_id)).content
    lines = [json.loads(line) for line in text.splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found
