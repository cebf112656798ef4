"""Drafts by prompt lookup in Baton, vLLM and llama.cpp, each with and without them, in one interleaved run.

    make engines-peers
    python -m benchmarks.speculation_peers [--engines baton,vllm,llama_cpp] [--batches 1,8] [--json FILE]

The model is that of `python -m benchmarks.speculation --counting`, in bf16, with its `editing` prompts: the output is
found in the prompt, apart from every twelfth token. Sampling is greedy. llama.cpp's drafts are those of
llama-cpp-python, which generates for one request at a time.
"""

import asyncio
import os
import random
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import click

from baton.engine.checkpoint.model_config import read_model_config
from benchmarks.counting_model import edited_passage, write_counting_model
from benchmarks.engines.cells import BF16, FIRST_TOKEN
from benchmarks.engines.contestants import OURS, Contestant, contestants_by_name
from benchmarks.engines.drivers.driver import Setting
from benchmarks.engines.engine_process import EngineProcess
from benchmarks.report import Report
from benchmarks.serve import random_model

ENGINES = ("baton", "vllm", "llama_cpp")
DRIVERS = {"llama_cpp": "llama_cpp_lookup_driver"}  # instead of those for whole batches
ONE_AT_A_TIME = frozenset({"llama_cpp"})
DEFAULT_PEERS = Path.home() / ".cache" / "baton" / "engines" / "peers"
COLUMNS = ("engine", "batch", "plain tok/s", "drafted tok/s", "ratio", "baton / engine")


@dataclass(slots=True)
class Pair:
    """An engine without drafts and with them, and its rates by the number of requests, in tokens per second."""

    name: str
    plain: EngineProcess
    drafted: EngineProcess
    rates: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def take(self, prompts: Sequence[Sequence[int]], num_tokens: int, *, is_measured: bool) -> None:
        """Run the prompts with and without drafts. Raises RuntimeError if Baton's tokens differ."""
        answers = [each.run(prompts, num_tokens, len(prompts)) for each in (self.plain, self.drafted)]
        outputs = [[answer.token_ids for answer in each] for each in answers]
        if self.name == OURS and outputs[0] != outputs[1]:
            raise RuntimeError("drafts have changed a token")
        seconds = [max(one.last_s for one in each) - min(one.submitted_s for one in each) for each in answers]
        if is_measured:
            num_output = num_tokens * len(prompts)
            self.rates.setdefault(len(prompts), []).append((num_output / seconds[0], num_output / seconds[1]))


@dataclass(frozen=True, slots=True)
class Options:
    """Where the engines are, and what they run with."""

    directory: Path
    peers: Path
    checkpoint: Path
    setting: Setting  # without drafts
    num_drafts: int
    cores: Sequence[int]

    def model(self, contestant: Contestant) -> Path:
        """Return the checkpoint in an engine's format, converted the first time."""
        return contestant.model(self.checkpoint, BF16, self.peers, self.directory)

    def start(self, contestant: Contestant, stack: ExitStack) -> Pair:
        """Load an engine twice."""
        driver, model = DRIVERS.get(contestant.name, contestant.driver), self.model(contestant)
        processes = []
        for num_drafts in (0, self.num_drafts):
            log = stack.enter_context((self.directory / f"{contestant.name}-{num_drafts}.log").open("w+b"))
            python, variables = contestant.python(self.peers), contestant.environment(self.peers)
            process = stack.enter_context(EngineProcess(python, driver, variables, self.cores, log))
            version = process.load(replace(self.setting, model=str(model), num_drafts=num_drafts))
            processes.append(process)
        click.echo(f"{version} is ready", err=True)
        return Pair(contestant.name, *processes)


def measure(pairs: Sequence[Pair], batches: Sequence[int], num_tokens: int, repeats: int, vocab_size: int) -> None:
    """Let the engines take turns; the first round is a warm-up."""
    words = range(FIRST_TOKEN, vocab_size)
    for repeat in range(repeats + 1):
        for batch in batches:
            draw = random.Random(1000 * repeat + batch)
            prompts = [edited_passage(draw, words, num_tokens) for _ in range(batch)]
            for pair in pairs:
                if batch == 1 or pair.name not in ONE_AT_A_TIME:
                    pair.take(prompts, num_tokens, is_measured=repeat > 0)


def add_rows(report: Report, pairs: Sequence[Pair]) -> None:
    """Fill the table with medians; the last column has the ratio of Baton's rate with drafts."""
    ours = next((pair for pair in pairs if pair.name == OURS), None)
    for pair in pairs:
        for batch, rates in pair.rates.items():
            plain, drafted = (median(each) for each in zip(*rates, strict=True))
            ratio = median(with_drafts / without for without, with_drafts in rates)
            of_ours = ours.rates[batch] if ours is not None else rates
            ahead = median(mine / theirs for (_, mine), (_, theirs) in zip(of_ours, rates, strict=True))
            report.add(pair.name, batch, plain, drafted, ratio, ahead)


@click.command()
@click.option("--engines", default=",".join(ENGINES), show_default=True, help="Engines, with commas between them.")
@click.option("--peers", type=click.Path(path_type=Path), default=DEFAULT_PEERS, help="Environments of the peers.")
@click.option("--batches", default="1,8", show_default=True, help="Requests at once.")
@click.option("--num-tokens", default=64, show_default=True, help="Tokens of a prompt, and of an output.")
@click.option("--num-drafts", default=8, show_default=True, help="Most tokens of a draft.")
@click.option("--repeats", default=3, show_default=True, help="Measured rounds.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JSON.")
def main(
    engines: str, peers: Path, batches: str, num_tokens: int, num_drafts: int, repeats: int, json_file: Path | None
) -> None:
    """Compare drafts of engines."""
    sizes, cores = [int(each) for each in batches.split(",")], sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        _, source = asyncio.run(random_model(Path(directory)))
        checkpoint = write_counting_model(source, Path(directory) / "counting-qwen3-0.6b")
        longest = 2 * num_tokens + 1  # a prompt has one token more
        setting = Setting("", "bf16", "bf16", len(cores), max(sizes), longest, prefix_caching=False)
        options = Options(Path(directory), peers, checkpoint, setting, num_drafts, cores)
        contestants = contestants_by_name(engines.split(","))
        for each in contestants:
            options.model(each)
        pairs = [options.start(each, stack) for each in contestants]
        measure(pairs, sizes, num_tokens, repeats, read_model_config(checkpoint).vocab_size)
    report = Report(f"Drafts of up to {num_drafts} tokens by prompt lookup, {num_tokens} tokens a request", COLUMNS)
    add_rows(report, pairs)
    report.show()
    if json_file is not None:
        report.write(json_file)


if __name__ == "__main__":
    main()
