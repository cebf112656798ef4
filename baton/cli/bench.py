"""`baton bench`: benchmark of an OpenAI-compatible server."""

import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import rich_click as click
from click import get_current_context
from click.core import ParameterSource
from rich.console import Console

from baton.cli.options.bench_arrivals import arrival_flags, length_flags
from baton.cli.options.bench_dataset import dataset_flags, vocabulary_flags
from baton.cli.options.bench_outputs import Outputs, output_flags
from baton.cli.options.bench_target import target_flags
from baton.cli.options.https_flags import https_flags
from baton.cli.options.model_argument import one_model
from baton.loadtool.arrivals import Arrivals, TraceTimes
from baton.loadtool.datasets.base import Dataset
from baton.loadtool.errors import LoadToolError, SettingError
from baton.loadtool.load_report import LoadReport, MeasuredRun
from baton.loadtool.plan import Limits, Planner
from baton.loadtool.probe import probe
from baton.loadtool.runs import Sweep
from baton.loadtool.slo import NAMES, Slo, parse_slo
from baton.loadtool.target import Target
from baton.loadtool.terminal import show_sweep
from baton.loadtool.vocabulary import Vocabulary

NOT_REPORTED = frozenset({"headers", "slo", "words"})  # headers may hold secrets; SLOs are reported together
FILE_WIDTH = 130


@click.command(name="bench")
@target_flags
@dataset_flags
@vocabulary_flags
@arrival_flags
@https_flags
@length_flags
@click.option("--num-warmups", type=click.IntRange(0), default=0, show_default=True, help="Warmup requests.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed.")
@click.option("--same-prompts", is_flag=True, help="Reuse the prompts in every run of a sweep; caches will hit.")
@click.option(
    "--request-timeout",
    "timeout_s",
    type=click.FloatRange(0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds until a request fails.",
)
@click.option(
    "--slo",
    "--goodput",
    "slo",
    multiple=True,
    help="SLOs for goodput: ttft=1s,tpot=50ms,e2el=10s, or vLLM's form ttft:1000 tpot:50 (ms).",
)
@click.argument("words", nargs=-1, metavar="[MODEL]")
@output_flags
def command(
    target: Target,
    make_dataset: Callable[[Vocabulary], Dataset],
    vocabulary: Vocabulary,
    arrivals: Sequence[Arrivals],
    https: ssl.SSLContext | None,
    limits: Limits,
    num_warmups: int,
    seed: int,
    same_prompts: bool,
    timeout_s: float,
    slo: Sequence[str],
    words: Sequence[str],
    outputs: Outputs,
) -> None:
    """Benchmark an OpenAI-compatible server: latency, throughput and goodput.

    MODEL is the model's name. Default: the first in the server's /v1/models.

    \b
    Examples:
    $ baton bench --max-concurrency 8
    $ baton bench --request-rate 1,2,4 --num-prompts 200 --slo ttft=500ms,tpot=50ms --html load.html
    $ baton bench --dataset mooncake --dataset-path trace.jsonl --scale-lengths 0.1 --duration 60
    """
    more_slo, model = _split(words, bool(slo))
    target = replace(target, model=one_model(model, target.model))
    console, notes = _console(), Console(stderr=True, highlight=False)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        slo_limits = parse_slo((*slo, *more_slo))
        dataset = make_dataset(vocabulary)
        loads = _loads(arrivals, dataset)
        with notes.status(f"reaching {target.base_url}"):
            target = probe(_for_texts(replace(target, https=https), dataset), vocabulary)
        sweep = Sweep(
            planner=Planner(dataset, target, vocabulary),
            arrivals=loads,
            limits=limits,
            num_warmups=num_warmups,
            seed=seed,
            same_prompts=same_prompts,
            timeout_s=timeout_s,
            slo=slo_limits,
        )
        runs = sweep.run(console, notes)
    except LoadToolError as error:
        raise click.ClickException(str(error)) from error
    if len(runs) > 1:
        show_sweep([each.summary for each in runs], console)
    context = get_current_context()
    try:
        outputs.write(LoadReport(target, dataset.name, _settings(context, slo_limits), when, runs))
    except OSError as error:
        raise click.ClickException(str(error)) from error
    context.exit(0 if _has_completed_requests(runs) else 1)


def _split(words: Sequence[str], has_slo: bool) -> tuple[list[str], str | None]:
    """Split the arguments into further limits of `--slo ttft=1s tpot=50ms`, and MODEL. Raises UsageError for others."""
    limits = [word for word in words if re.split("[:=]", word)[0] in NAMES]
    names = [word for word in words if word not in limits]
    if stray := names[1:] + ([] if has_slo else limits):
        raise click.UsageError(f"unexpected argument {stray[-1]!r}")
    return limits, names[0] if names else None


def _console() -> Console:
    """Return the console for tables: fixed width if the output is not a terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=FILE_WIDTH)


def _loads(arrivals: Sequence[Arrivals], dataset: Dataset) -> Sequence[Arrivals]:
    """Return the given arrivals. Default: the trace's times. Raises SettingError if the dataset has none."""
    if not dataset.has_times and (not arrivals or isinstance(arrivals[0], TraceTimes)):
        raise SettingError(
            f"the {dataset.name} dataset has no times: give --request-rate N (open loop) or --max-concurrency N "
            "(closed loop)"
        )
    return arrivals or [TraceTimes()]


def _for_texts(target: Target, dataset: Dataset) -> Target:
    """Send text prompts for a dataset of conversations, without probing whether the server takes token ids."""
    if dataset.name == "sharegpt" and not target.is_chat:
        return replace(target, takes_token_ids=False)
    return target


def _has_completed_requests(runs: Sequence[MeasuredRun]) -> bool:
    return any(each.summary.num_completed for each in runs)


def _settings(context: click.Context, slo: Slo | None) -> Mapping[str, object]:
    """Return the options that were set, for the report."""
    return {
        name: _plain_value(value)
        for name, value in context.params.items()
        if name not in NOT_REPORTED and context.get_parameter_source(name) is not ParameterSource.DEFAULT
    } | ({"slo": str(slo)} if slo is not None else {})


def _plain_value(value: object) -> object:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return value if isinstance(value, bool | int) else str(value)
