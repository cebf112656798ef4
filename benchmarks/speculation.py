"""Speculative decoding by prompt lookup, from recent outputs, or with a draft model or head, against plain decoding.

    python -m benchmarks.speculation [--model DIRECTORY] [--batches 1,4,16] [--repeats N] [--json FILE]
    python -m benchmarks.speculation --config '{"method": "suffix"}'
    python -m benchmarks.speculation --draft-layers 1
    python -m benchmarks.speculation --counting
    python -m benchmarks.speculation --config '{"method": "eagle3", "model": "/tmp/head"}' --prompts FILE

The one with `--draft-layers` drafts with a copy of the model's first layers, and the one with `--counting` measures a
model with the shape of Qwen3-0.6B and random weights, whose outputs count up (`counting_model.py`).

Two engines with the same model, one of them with drafts, in one process. A wave is a number of requests that start at
once and generate equally many tokens; the waves of both engines are interleaved, and each pair must have the same
tokens.

- editing: greedy, and the prompt repeats a passage. A trained model goes on copying it, and so does the bundled one, so
  the output is mostly found in the prompt, as when a model edits a text or a program. With `--counting` the prompt has
  the numbers that the output says, every twelfth of them replaced.
- free: random prompts and a temperature of 1. Hardly anything repeats, so drafts can only cost time.
- recurring: greedy, with the prompts of earlier waves again, in random order. Only drafts of `suffix` remember outputs.
- text, with `--prompts`: prompts from a file, a JSON list of strings, and a temperature of 0.7.

The output rate is that of the whole wave, its prefill included. Accepted are drafted tokens that were right.
"""

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import click
from tokenizers import Tokenizer

from baton.engine.config import EngineConfig
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.settings.values import JsonText, parse_json
from benchmarks.counting_model import edited_passage, write_counting_model
from benchmarks.first_layers import with_first_layers
from benchmarks.report import Report
from benchmarks.serve import random_model
from benchmarks.waves import Runner, Wave

BUNDLED = Path(str(files("baton"))) / "bundled_model"
NGRAM = '{"method": "ngram"}'
EDITING, FREE, RECURRING, TEXT = "editing", "free", "recurring", "text"
NUM_RECURRING = 16  # prompts
PASSAGE_LEN, NUM_COPIES = 60, 4
FIRST_WORD = 300  # token ids from here on are words
COLUMNS = ("workload", "batch", "plain tok/s", "drafted tok/s", "ratio", "slowest ratio", "drafted", "accepted")


@dataclass(slots=True)
class Samples:
    """Waves of one row, pairwise."""

    plain: list[Wave] = field(default_factory=list)
    drafted: list[Wave] = field(default_factory=list)

    def add_row(self, report: Report, workload: str, batch: int) -> None:
        """Add the row's medians to a report."""
        plain, drafted = (median(each.tokens_per_s for each in waves) for waves in (self.plain, self.drafted))
        ratios = [two.tokens_per_s / one.tokens_per_s for one, two in zip(self.plain, self.drafted, strict=True)]
        num_drafted = sum(each.num_drafted for each in self.drafted)
        num_accepted = sum(each.num_accepted for each in self.drafted)
        num_tokens = sum(len(output) for each in self.drafted for output in each.outputs)
        accepted = num_accepted / num_drafted if num_drafted else 0.0
        report.add(workload, batch, plain, drafted, median(ratios), min(ratios), num_drafted / num_tokens, accepted)


@dataclass(frozen=True, slots=True)
class Texts:
    """Contents of the requests: tokens of each output, whether the model counts, and prompts of `text`."""

    num_tokens: int
    counting: bool = False
    prompts: Sequence[list[int]] = ()


def read_prompts(file: Path | None, model: Path) -> Sequence[list[int]]:
    """Return the tokens of the prompts in a file; none without one."""
    if file is None:
        return []
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in json.loads(file.read_text())]


def make_wave(workload: str, batch: int, texts: Texts, vocab_size: int, seed: int) -> list[Request]:
    """Return the requests of a wave; another seed gives other prompts."""
    draw = random.Random(seed)
    words = range(min(FIRST_WORD, vocab_size // 2), vocab_size)
    requests = []
    for number in range(batch):
        if workload == EDITING and texts.counting:
            prompt = edited_passage(draw, words, texts.num_tokens)
            temperature = 0.0
        elif workload == EDITING:
            prompt = draw.choices(words, k=PASSAGE_LEN) * NUM_COPIES
            temperature = 0.0
        elif workload == RECURRING:
            prompt = random.Random(draw.randrange(NUM_RECURRING)).choices(words, k=PASSAGE_LEN * NUM_COPIES)
            temperature = 0.0
        elif workload == FREE:
            prompt = draw.choices(words, k=PASSAGE_LEN * NUM_COPIES)
            temperature = 1.0
        else:
            prompt, temperature = list(draw.choice(texts.prompts)), 0.7
        seed_of_request = draw.getrandbits(60)
        sampling = SamplingParams(
            temperature=temperature, seed=seed_of_request, max_tokens=texts.num_tokens, ignore_eos=True
        )
        requests.append(Request(RequestId(f"{seed}-{number}"), prompt, len(prompt), sampling))
    return requests


def make_config(model: Path, dtype: str, num_threads: int | None, speculation: JsonText | None) -> EngineConfig:
    """Return an engine's options."""
    return EngineConfig(
        model=str(model),
        dtype=dtype,
        num_threads=num_threads,
        kv_cache_memory_bytes=1 << 30,
        enable_prefix_caching=False,
        speculative_config=speculation,
    )


@contextmanager
def both(config: Callable[[JsonText | None], EngineConfig], options: str) -> Iterator[tuple[Runner, Runner]]:
    """Yield an engine without drafts and one with."""
    runners = [Runner(config(None)), Runner(config(parse_json(options)))]
    try:
        yield runners[0], runners[1]
    finally:
        for each in runners:
            each.stop()


def measure(plain: Runner, drafted: Runner, batches: Sequence[int], repeats: int, texts: Texts, report: Report) -> None:
    """Fill the table. Raises RuntimeError if drafts change a token."""
    workloads = (EDITING, FREE, RECURRING, *((TEXT,) if texts.prompts else ()))
    rows = {(workload, batch): Samples() for workload in workloads for batch in batches}
    for repeat in range(repeats + 1):  # the first is a warm-up
        for place, ((workload, batch), samples) in enumerate(rows.items()):
            seed = 1000 * repeat + place
            waves = [each.wave(make_wave(workload, batch, texts, each.vocab_size, seed)) for each in (plain, drafted)]
            if waves[0].outputs != waves[1].outputs:
                report.notes.append(f"{workload}, batch {batch}, seed {seed}: the tokens differ")
            if repeat:
                samples.plain.append(waves[0])
                samples.drafted.append(waves[1])
    for (workload, batch), samples in rows.items():
        samples.add_row(report, workload, batch)


def _numbers(_context: click.Context, _parameter: click.Parameter, value: str) -> list[int]:
    try:
        return [int(each) for each in value.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"{value}: only numbers with commas between them, such as 1,4,16") from error


@click.command()
@click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=BUNDLED,
    help="Checkpoint. Default: the bundled one.",
)
@click.option("--dtype", default="auto", show_default=True, help="Type of weights and activations.")
@click.option("--num-threads", type=int, help="Threads of torch. Default: one per core.")
@click.option("--batches", default="1,4,16", show_default=True, callback=_numbers, help="Requests of a wave.")
@click.option("--num-tokens", default=256, show_default=True, help="Output tokens of a request.")
@click.option("--repeats", default=5, show_default=True, help="Measured waves of each row.")
@click.option("--config", "options", default=NGRAM, show_default=True, help="Value of speculative_config.")
@click.option("--draft-layers", type=int, help="Layers of a draft model: the model's first. Default: --config.")
@click.option("--counting", is_flag=True, help="Measure a model of Qwen3-0.6B's shape that counts, instead of --model.")
@click.option(
    "--prompts", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="JSON list of prompts for `text`."
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JSON.")
def main(
    model: Path,
    dtype: str,
    num_threads: int | None,
    batches: list[int],
    num_tokens: int,
    repeats: int,
    options: str,
    draft_layers: int | None,
    counting: bool,
    prompts: Path | None,
    json_file: Path | None,
) -> None:
    """Measure speculative decoding."""
    drafts = options if draft_layers is None else f"the first {draft_layers} layers"
    with TemporaryDirectory() as directory, ExitStack() as stack:
        if counting:
            _, source = asyncio.run(random_model(Path(directory)))
            model = write_counting_model(source, Path(directory) / "counting-qwen3-0.6b")
        report = Report(f"Drafts of {drafts}, {num_tokens} tokens a request, {model.name}", COLUMNS)
        if draft_layers is not None:
            draft = with_first_layers(model, Path(directory) / "draft", draft_layers)
            options = json.dumps({"method": "draft_model", "model": str(draft)})
        config = partial(make_config, model, dtype, num_threads)
        plain, drafted = stack.enter_context(both(config, options))
        measure(plain, drafted, batches, repeats, Texts(num_tokens, counting, read_prompts(prompts, model)), report)
    report.show()
    if json_file is not None:
        report.write(json_file)


if __name__ == "__main__":
    main()
