"""Prefill of Mamba-2 layers in Baton and in transformers' torch operations, with random weights on the CPU.

    python -m benchmarks.mamba [--json FILE] [--tokens N] [--repeats N]

Each model is two mixers of the sizes of a small hybrid's (2,048 hidden, 64 heads of 64, a state of 128 per head). Both
compute the same prompt in one step, in turn, with one thread. Times are medians of CPU time, on which other programs
have little influence.
"""

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import click
import torch
from transformers import AutoModelForCausalLM

from benchmarks.report import Report
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import save_checkpoint
from tests.paged_model import PagedModel

SIZES = {
    "hidden_size": 2048,
    "num_hidden_layers": 2,
    "num_heads": 64,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 1,
    "initializer_range": 0.02,
}
DTYPES = ("float32", "bfloat16")
COLUMNS = ("dtype", "tokens", "Baton tokens/s", "transformers tokens/s", "times as fast")


def prefill_of_baton(directory: Path, dtype: str, tokens: list[int]) -> Callable[[], object]:
    """Return a function that computes a prompt in one step of Baton's model."""
    paged = PagedModel(directory, dtype=dtype)
    batch = replace(paged.batch(["prompt"], [tokens]), logits_indices=torch.tensor([len(tokens) - 1]))
    return lambda: paged.model.forward(batch, paged.pool)


def prefill_of_transformers(directory: Path, dtype: str, tokens: list[int]) -> Callable[[], object]:
    """Return a function that computes a prompt, and the state after it, with transformers."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype))
    ids = torch.tensor([tokens])

    def prefill() -> object:
        with torch.inference_mode():
            return model(ids, use_cache=True, logits_to_keep=1)

    return prefill


def median_times(functions: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return the median CPU seconds of each function, called in turn; the first round does not count."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(1 + repeats):
        for each, taken in zip(functions, times, strict=True):
            start = time.process_time()
            each()
            taken.append(time.process_time() - start)
    return [median(taken[1:]) for taken in times]


@click.command(help=__doc__)
@click.option("--json", "path", type=click.Path(path_type=Path), help="File for the results.")
@click.option("--tokens", "num_tokens", default=1024, show_default=True, help="Length of the prompt.")
@click.option("--repeats", default=7, show_default=True, help="Measured rounds.")
def main(path: Path | None, num_tokens: int, repeats: int) -> None:
    """Run the benchmark."""
    torch.set_num_threads(1)
    report = Report("Prefill of two Mamba-2 layers", COLUMNS)
    tokens = random.Random(0).choices(range(VOCAB_SIZE), k=num_tokens)
    with tempfile.TemporaryDirectory() as name:
        directory = save_checkpoint("mamba2", Path(name), **SIZES)
        for dtype in DTYPES:
            functions = [each(directory, dtype, tokens) for each in (prefill_of_baton, prefill_of_transformers)]
            ours, theirs = median_times(functions, repeats)
            report.add(dtype, num_tokens, num_tokens / ours, num_tokens / theirs, theirs / ours)
    report.show()
    if path is not None:
        report.write(path)


if __name__ == "__main__":
    main()
