"""`baton serve` of a GGUF file, with nothing else."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import httpx

from baton.engine.checkpoint.gguf.directory import checkpoint_directory
from baton.router.text.tokenizer_files import read_tokenizer
from benchmarks.server import free_port
from tests.integration.handover.test_packed_weights_handover import greedy
from tests.integration.http.test_serve_start import read_until
from tests.unit.engine.packed.gguf_writer import Type, write_gguf
from tests.unit.engine.perplexity import BUNDLED


async def test_a_file_is_served_with_its_own_tokenizer_and_template(tmp_path: Path) -> None:
    written = write_gguf(BUNDLED, tmp_path / "gguf", Type.Q8_0)
    directory = checkpoint_directory(written.file, tmp_path / "cache")
    tokenizer = read_tokenizer(str(directory))
    chat = [{"role": "user", "content": "What does a list do? Explain it with an example."}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert isinstance(prompt, list)
    expected = tokenizer.decode(greedy(directory, prompt), skip_special_tokens=True)
    port = free_port()
    options = (f"--port={port}", "--kv-cache-memory-bytes=64MiB", "--log-level=warning", "--dtype=float32")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "baton", "serve", str(written.file), *options),
        stdout=PIPE,
        stderr=STDOUT,
        env=os.environ | {"HF_HOME": str(tmp_path / "home")},
    )
    try:
        start = await read_until(process, "Press Ctrl-C to stop.")
        assert "model        tiny-Q8_0, 4.99M parameters, float32, weights stored in GGUF" in start
        assert "pools        1 prefill + 1 decode" in start
        body = {"messages": chat, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:
            response = (await client.post("/v1/chat/completions", json=body | {"model": "tiny-Q8_0"})).json()
            metrics = (await client.get("/metrics")).text
        assert response["choices"][0]["message"]["content"] == expected
        assert "tiny-Q8_0" in metrics
    finally:
        process.terminate()
        await process.wait()
