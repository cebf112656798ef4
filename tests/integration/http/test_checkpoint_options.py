"""`baton serve` of a checkpoint that needs options: another tokenizer, and a longer context by YaRN."""

import asyncio
import json
import shutil
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import httpx
import pytest

from baton.router.text.tokenizer_files import read_tokenizer
from baton.settings.values import parse_json
from benchmarks.server import free_port
from tests.integration.handover.test_packed_weights_handover import greedy
from tests.integration.http.test_serve_start import read_until
from tests.unit.engine.perplexity import BUNDLED

YARN = parse_json({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}})


def without_tokenizer(directory: Path) -> Path:
    """Copy the bundled model without its tokenizer's files, and with a context of 128 tokens."""
    shutil.copytree(BUNDLED, directory, ignore=shutil.ignore_patterns("tokenizer*", "chat_template*"))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 128}))
    return directory


@pytest.mark.slow
async def test_a_model_is_served_with_another_tokenizer_beyond_its_context(tmp_path: Path) -> None:
    model = without_tokenizer(tmp_path / "bare")
    tokenizer = read_tokenizer(str(BUNDLED))
    chat = [{"role": "user", "content": "What does a list do? Explain it with an example. " * 15}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert isinstance(prompt, list)
    assert len(prompt) > 128
    expected = tokenizer.decode(greedy(model, prompt, YARN), skip_special_tokens=True)
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "baton", "serve", str(model), f"--tokenizer={BUNDLED}", f"--hf-overrides={YARN}"),
        *("--max-model-len=400", "--dtype=float", f"--port={port}", "--kv-cache-memory-bytes=64MiB"),
        "--log-level=warning",
        stdout=PIPE,
        stderr=STDOUT,
    )
    try:
        assert "requests of 400 tokens" in await read_until(process, "Press Ctrl-C to stop.")
        body = {"model": "bare", "messages": chat, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        enforced = {"response_format": {"type": "json_object"}, "max_tokens": 8, "ignore_eos": False}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:
            response = (await client.post("/v1/chat/completions", json=body)).json()
            in_json = (await client.post("/v1/chat/completions", json=body | enforced)).json()
        assert response["choices"][0]["message"]["content"] == expected
        assert in_json["choices"][0]["message"]["content"].lstrip().startswith("{")  # by the workers' tokenizer
    finally:
        process.terminate()
        await process.wait()
