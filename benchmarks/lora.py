"""Requests with LoRA adapters, compared with requests of the base model.

    python -m benchmarks.lora [--model DIRECTORY] [--clients 8] [--rank 16] [--repeats N] [--json FILE]

A wave is one request of each client; all start at once. Two engines with the same model in one process, one of them
with adapters enabled and loaded, run the waves of all rows in turn:

- disabled: the base model in the engine without adapters. The other rows are compared with it.
- base: the base model in the engine with adapters
- one adapter: all clients use the same one
- an adapter each: every client uses its own
- half: every other client uses its own, and the others the base model

The adapters are random and change all projections of the layers, except experts. The rates are those of whole waves,
prefill included.
"""

import random
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import click

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from benchmarks.report import Report
from benchmarks.waves import Runner
from tests.adapters import ALL_TARGETS, LATENT_TARGETS, make_adapter

BUNDLED = Path(str(files("baton"))) / "bundled_model"
FIRST_WORD = 300  # token ids from here on are words
SIZE = 0.02  # standard deviation of the adapters' matrices
DISABLED = "disabled"
COLUMNS = ("case", "clients", "tokens/s", "ratio", "smallest ratio")


def cases(clients: int) -> dict[str, list[str | None]]:
    """Return the adapter of each client, by case."""
    own = [f"{client}" for client in range(clients)]
    return {
        DISABLED: [None] * clients,
        "base": [None] * clients,
        "one adapter": ["0"] * clients,
        "an adapter each": [*own],
        "half": [name if client % 2 else None for client, name in enumerate(own)],
    }


def wave_of(
    adapters: Sequence[str | None], prompt_len: int, num_tokens: int, vocab_size: int, seed: int
) -> list[Request]:
    """Return the requests of a wave."""
    draw = random.Random(seed)
    words = range(min(FIRST_WORD, vocab_size // 2), vocab_size)
    sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    return [
        Request(RequestId(f"{seed}-{client}"), draw.choices(words, k=prompt_len), prompt_len, sampling, adapter=adapter)
        for client, adapter in enumerate(adapters)
    ]


def measure(
    runners: Mapping[bool, Runner], clients: int, prompt_len: int, num_tokens: int, repeats: int, report: Report
) -> None:
    """Fill the table. runners: by whether adapters are enabled."""
    rates: dict[str, list[float]] = {name: [] for name in cases(clients)}
    for repeat in range(repeats + 1):  # the first is a warm-up
        for name, adapters in cases(clients).items():
            runner = runners[name != DISABLED]
            wave = runner.wave(wave_of(adapters, prompt_len, num_tokens, runner.vocab_size, repeat))
            if repeat:
                rates[name].append(wave.tokens_per_s)
    for name, measured in rates.items():
        ratios = [ours / theirs for ours, theirs in zip(measured, rates[DISABLED], strict=True)]
        report.add(name, clients, median(measured), median(ratios), min(ratios))


def load_adapters(runner: Runner, model: Path, clients: int, rank: int, directory: Path, *, experts: bool) -> int:
    """Load an adapter for each client; return the bytes of one. experts: they change those of a mixture, too."""
    has_experts = read_model_config(model).moe is not None
    targets = (*LATENT_TARGETS, *(ALL_TARGETS[:4] if has_experts and not experts else ALL_TARGETS))
    num_bytes = 0
    for client in range(clients):
        name = f"{client}"
        path = make_adapter(model, directory / name, targets, rank=rank, seed=client, size=SIZE)
        num_bytes = runner.call(partial(_load, name=name, path=path))
    return num_bytes


def _load(engine: Engine, *, name: str, path: Path) -> int:
    return engine.adapters.load(name, path).num_bytes


@click.command()
@click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=BUNDLED,
    help="Checkpoint with one file of weights. Default: the bundled one, a mixture; see --experts.",
)
@click.option("--dtype", default="auto", show_default=True, help="Type of weights, activations and adapters.")
@click.option("--num-threads", type=int, help="Threads of torch. Default: one per core.")
@click.option("--clients", default=8, show_default=True, help="Requests of a wave.")
@click.option("--rank", default=16, show_default=True, help="Rank of the adapters.")
@click.option("--experts", is_flag=True, help="Adapters of a mixture change its experts, too.")
@click.option("--prompt-len", default=128, show_default=True, help="Tokens of a prompt.")
@click.option("--num-tokens", default=64, show_default=True, help="Output tokens of a request.")
@click.option("--repeats", default=5, show_default=True, help="Measured waves of each row.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JSON.")
def main(
    model: Path,
    dtype: str,
    num_threads: int | None,
    clients: int,
    rank: int,
    experts: bool,
    prompt_len: int,
    num_tokens: int,
    repeats: int,
    json_file: Path | None,
) -> None:
    """Measure requests with LoRA adapters."""

    def config(*, enable_lora: bool) -> EngineConfig:
        return EngineConfig(
            model=str(model),
            dtype=dtype,
            num_threads=num_threads,
            kv_cache_memory_bytes=1 << 30,
            enable_prefix_caching=False,
            enable_lora=enable_lora,
            max_loras=clients,
            max_lora_rank=rank,
        )

    runners = {enabled: Runner(config(enable_lora=enabled)) for enabled in (False, True)}
    try:
        with TemporaryDirectory() as directory:
            adapter_bytes = load_adapters(runners[True], model, clients, rank, Path(directory), experts=experts)
        title = f"LoRA adapters of rank {rank} ({adapter_bytes / 1e6:.1f} MB each in fp32), {model.name}"
        report = Report(f"{title}, prompts of {prompt_len}, {num_tokens} tokens a request", COLUMNS)
        measure(runners, clients, prompt_len, num_tokens, repeats, report)
    finally:
        for each in runners.values():
            each.stop()
    report.show()
    if json_file is not None:
        report.write(json_file)


if __name__ == "__main__":
    main()
