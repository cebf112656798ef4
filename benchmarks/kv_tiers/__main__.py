"""First tokens of prompts whose KV is in a store below the KV cache, compared with computing them, and with peers.

    python -m benchmarks.kv_tiers [--json FILE] [--repeats N] [--model DIR] [--tokens N] [--tier NAME ...]
                                  [--peers DIRECTORY]

The KV cache of each system holds one prompt, so each prompt evicts the one before it. The systems of a tier take turns:
each computes a new prompt, and is then sent the one before it again, whose KV comes from the store. Both TTFTs are
medians. Files of the disk are dropped from the page cache before they are read.

Baton is a server with one worker, measured by a client. Its limit is the time in which one thread reads the same bytes
from the store into memory that is in use (of host memory by a copy, of a disk, also behind NIXL, by reads without the
page cache, of Redis by GETs), plus the time that the tokens which are not stored, at least the last one, take at the
rate at which the whole prompt is computed. Peers are measured inside their process, with environments that
`python -m benchmarks.engines.peers DIRECTORY llama_cpp vllm_lmcache` makes; one without an environment, or that
fails, gets a note.
"""

import asyncio
import random
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import click

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.kv.dtype import kv_bytes_per_token
from benchmarks.kv_tiers.baton_system import baton_system
from benchmarks.kv_tiers.peer_system import peer_system, peers
from benchmarks.kv_tiers.system import System, SystemFailed
from benchmarks.kv_tiers.tier_setup import TIERS
from benchmarks.kv_tiers.turns import COLUMNS, Turns, add_note
from benchmarks.report import Report
from benchmarks.serve import random_model

FIRST_TOKEN = 300  # lower ids are special tokens or bytes


async def measure(
    model: Path, tier: str, num_tokens: int, repeats: int, environments: Path | None, report: Report
) -> None:
    """Add the rows of one tier; `environments`: of the peers, or None for Baton alone."""
    config = read_model_config(model)
    rng = random.Random(0)
    prompts = [[rng.randrange(FIRST_TOKEN, config.vocab_size) for _ in range(num_tokens)] for _ in range(repeats + 2)]
    async with AsyncExitStack() as stack:
        systems: list[System] = [await stack.enter_async_context(baton_system(model, tier, num_tokens))]
        for peer in peers() if environments is not None else ():
            if tier in peer.tiers:
                assert environments is not None
                try:
                    systems.append(stack.enter_context(peer_system(peer, tier, model, num_tokens, environments)))
                except SystemFailed as error:
                    add_note(report, f"{peer.name} is not measured with the {tier} tier: {error}")
        await Turns(tier, systems, report).run(prompts, num_tokens * kv_bytes_per_token(config))
    report.show()


@click.command()
@click.option("--model", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--tokens", "num_tokens", default=4096, show_default=True, help="Tokens of a prompt.")
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1), help="Measured prompts of a tier.")
@click.option("--tier", "tiers", type=click.Choice(TIERS), multiple=True, default=TIERS, show_default=True)
@click.option("--peers", "environments", type=click.Path(file_okay=False, path_type=Path),
              help="Directory of the peers' environments. Default: no peers.")  # fmt: skip
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JSON.")
def main(
    model: Path | None, num_tokens: int, repeats: int, tiers: Sequence[str], environments: Path | None,
    json_file: Path | None,
) -> None:  # fmt: skip
    """Measure a random model with the shape of Qwen3-0.6B, or the given model."""
    report = Report("First token of a prompt whose KV is in a store, one worker", COLUMNS)

    async def run() -> None:
        with tempfile.TemporaryDirectory() as directory:
            chosen = model or (await random_model(Path(directory)))[1]
            for tier in tiers:
                await measure(chosen, tier, num_tokens, repeats, environments, report)
                if json_file is not None:
                    report.write(json_file)  # after each tier, since all take minutes

    asyncio.run(run())


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.kv_tiers")
