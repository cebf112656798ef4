"""Measurement of cells: engines take turns, and disturbed samples are repeated."""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import psutil

from baton.engine.checkpoint.model_config import read_model_config
from benchmarks.engines.cells import NUM_OUTPUT_TOKENS, Cell
from benchmarks.engines.checkpoint import ensure_checkpoint
from benchmarks.engines.contestants import Contestant
from benchmarks.engines.engine_process import EngineFailed, EngineProcess
from benchmarks.engines.engines_table import CellFloor, add_rows
from benchmarks.engines.floors import Floor
from benchmarks.engines.interference import between, look
from benchmarks.engines.samples import Sample, Samples
from benchmarks.machine import MachineLimits
from benchmarks.report import Report

PAUSE_S = 5.0  # before a disturbed sample is repeated
NUM_WARM_UP_TOKENS = 8
ENGINE_BYTES = 1 << 30  # memory of an engine without weights and KV
WEIGHT_COPIES = 2  # some engines keep the checkpoint's in addition to their own
MEMORY_SHARE = 0.9  # of the free memory
ATTEMPTS = 1000  # more than there are: seeds of different repeats are apart


@dataclass(frozen=True, slots=True)
class Options:
    """Measurement options."""

    directory: Path  # checkpoints and converted models
    peers: Path  # environments
    cores: Sequence[int]
    repeats: int
    retakes: int  # maximum repeats of a disturbed sample


class Comparison:
    """Table of results, and the order in which it is filled."""

    def __init__(
        self,
        contestants: Sequence[Contestant],
        options: Options,
        limits: Mapping[str, MachineLimits],
        report: Report,
    ) -> None:
        self._contestants = contestants
        self._options = options
        self._limits = limits
        self._report = report

    def measure(self, cell: Cell) -> None:
        """Add a cell's rows. An engine that lacks a feature or fails gets a note instead."""
        checkpoint = ensure_checkpoint(cell.series.shape, self._options.directory)
        contestants = [each for each in self._contestants if not self._is_lacking(each, cell)]
        samples = {each.name: Samples(cell) for each in contestants}
        if self._fit_together(len(contestants), cell, checkpoint):
            self._take_turns_loaded(contestants, cell, checkpoint, samples)
        else:
            self._take_turns_loading(contestants, cell, checkpoint, samples)
        floor = CellFloor.of(Floor.of(checkpoint), cell, self._limits)
        add_rows(self._report, cell, floor, {name: each for name, each in samples.items() if each.taken})

    def _is_lacking(self, contestant: Contestant, cell: Cell) -> bool:
        reason = contestant.lacks(cell.series)
        if reason:
            self._note(f"{contestant.name} is not in {cell.series.name}: {reason}")
        return bool(reason)

    def _note(self, note: str) -> None:
        if note not in self._report.notes:
            self._report.notes.append(note)
            click.echo(note, err=True)

    def _fit_together(self, num_engines: int, cell: Cell, checkpoint: Path) -> bool:
        floor = Floor.of(checkpoint)
        weights = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
        kv_bytes = cell.setting("", 1).num_kv_tokens * floor.kv_values * 2
        needed = num_engines * (WEIGHT_COPIES * weights + kv_bytes + ENGINE_BYTES)
        return needed < MEMORY_SHARE * psutil.virtual_memory().available

    def _take_turns_loaded(
        self, contestants: Sequence[Contestant], cell: Cell, checkpoint: Path, samples: Mapping[str, Samples]
    ) -> None:
        """Keep all engines loaded; one at a time computes."""
        with ExitStack() as stack:
            engines: dict[str, EngineProcess] = {}
            for contestant in contestants:
                with self._noted(contestant, cell):
                    engines[contestant.name] = stack.enter_context(self._loaded(contestant, cell, checkpoint))
            for repeat in range(self._options.repeats):
                for contestant in in_turn(contestants, repeat):
                    if contestant.name in engines:
                        with self._noted(contestant, cell):
                            sample = self._take(engines[contestant.name], cell, repeat, contestant.name)
                            samples[contestant.name].taken.append(sample)

    def _take_turns_loading(
        self, contestants: Sequence[Contestant], cell: Cell, checkpoint: Path, samples: Mapping[str, Samples]
    ) -> None:
        """Load each engine for each of its turns, for caches too large to keep all engines loaded."""
        for repeat in range(self._options.repeats):
            for contestant in in_turn(contestants, repeat):
                with self._noted(contestant, cell), self._loaded(contestant, cell, checkpoint) as engine:
                    samples[contestant.name].taken.append(self._take(engine, cell, repeat, contestant.name))

    @contextmanager
    def _noted(self, contestant: Contestant, cell: Cell) -> Iterator[None]:
        try:
            yield
        except EngineFailed as error:
            print(error, file=sys.stderr)
            self._note(f"{contestant.name} failed in {cell.description}: {str(error).splitlines()[0]}")

    @contextmanager
    def _loaded(self, contestant: Contestant, cell: Cell, checkpoint: Path) -> Iterator[EngineProcess]:
        options = self._options
        model = contestant.model(checkpoint, cell.series, options.peers, options.directory)
        python, variables = contestant.python(options.peers), contestant.environment(options.peers)
        vocab_size = read_model_config(checkpoint).vocab_size
        with (
            tempfile.TemporaryFile() as log,
            EngineProcess(python, contestant.driver, variables, options.cores, log) as engine,
        ):
            started_s = time.perf_counter()
            version = engine.load(cell.setting(str(model), len(options.cores)))
            engine.run(cell.warm_up(vocab_size), NUM_WARM_UP_TOKENS, cell.concurrency)
            click.echo(f"{cell.description}: {version}, ready in {time.perf_counter() - started_s:.0f} s", err=True)
            yield engine

    def _take(self, engine: EngineProcess, cell: Cell, repeat: int, name: str) -> Sample:
        def take(attempt: int) -> Sample:
            sample = self._take_once(engine, cell, repeat * ATTEMPTS + attempt)
            click.echo(
                f"{cell.description}: {name} {sample.tokens_per_s:.1f} tok/s, others "
                f"{sample.interference.others:.1%}, steal {sample.interference.steal:.1%}",
                err=True,
            )
            return sample

        best = least_disturbed(take, self._options.retakes, PAUSE_S)
        if best.interference.is_much:
            self._note(
                f"{name} in {cell.description}: other processes took {best.interference.others:.0%} of the cores, "
                f"the host {best.interference.steal:.0%}"
            )
        return best

    def _take_once(self, engine: EngineProcess, cell: Cell, seed: int) -> Sample:
        cores = self._options.cores
        checkpoint = ensure_checkpoint(cell.series.shape, self._options.directory)
        prompts = cell.prompts(read_model_config(checkpoint).vocab_size, seed)
        engine.reset_peak()
        before = look(cores)
        answers = engine.run(prompts, NUM_OUTPUT_TOKENS, cell.concurrency)
        interference = between(before, look(cores), len(cores))
        return Sample(answers, engine.peak_bytes(), interference, seed)


def least_disturbed(take: Callable[[int], Sample], retakes: int, pause_s: float) -> Sample:
    """Return the first undisturbed sample, or after `retakes` more attempts the least disturbed one.

    `take` gets the number of the attempt, from 0.
    """
    samples: list[Sample] = []
    for attempt in range(1 + retakes):
        if attempt:
            time.sleep(pause_s)
        samples.append(take(attempt))
        if not samples[-1].interference.is_much:
            return samples[-1]
    return min(samples, key=lambda sample: sample.interference.total)


def in_turn(contestants: Sequence[Contestant], repeat: int) -> list[Contestant]:
    """Return the contestants rotated, so that each repeat starts with another one."""
    start = repeat % max(1, len(contestants))
    return [*contestants[start:], *contestants[:start]]
