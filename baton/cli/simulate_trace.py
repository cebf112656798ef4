"""Options of `baton simulate --trace`, and the study that they describe."""

import json
import os
from collections.abc import Collection, Mapping
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console

from baton.cli.options.flag_group import Flags, flag_group
from baton.deployment.autoscaling.settings import SLO
from baton.deployment.ray.scaling_options import read_settings
from baton.loadtool.errors import LoadToolError, SettingError
from baton.loadtool.lengths import Lengths
from baton.router.policy.targets import Targets
from baton.settings.config_file import as_section, build, check_section, pick, read_config_file
from baton.settings.options import options_of
from baton.settings.slo import parse_slo
from baton.settings.values import OptionError
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.study.comparison import Comparison
from baton.simulation.study.fit import fit_machine
from baton.simulation.study.json_report import to_json
from baton.simulation.study.page import render_page
from baton.simulation.study.picture import can_draw, draw_picture
from baton.simulation.study.profile_reader import read_profile
from baton.simulation.study.reader import granule, read_trace
from baton.simulation.study.runs import run_at_once
from baton.simulation.study.study import NoteRun, Study
from baton.simulation.study.terminal import show
from baton.simulation.twin.deployment_plan import START_S, DeploymentPlan
from baton.simulation.twin.machine import Machine
from baton.simulation.workers.config import SimulationConfig

FILE = click.Path(dir_okay=False, path_type=Path)
READ_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FILE_WIDTH = 200
MIN_REQUESTS = 2000  # with fewer, starting processes takes longer than it saves
POOLS = ("prefill", "decode", "colocated")
FLAGS_OF_SCALING = {"budget_gpus": "--gpus", "slo": "--slo", "start_s": "--start-s"}
# Options for serving have no effect in virtual time: no client connects, and no client reads the tokens.
ONLY_SERVING = set(options_of(SimulationConfig)) - set(POOLS) | {
    "first_token_id",
    "num_token_ids",
    "log_level",
    "log_format",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Options of a study, apart from the workers' options."""

    trace: Path
    slo: SLO
    num_gpus: int
    profile: Path | None
    is_autoscaled: bool
    scaling: Mapping[str, object]  # settings of the autoscaler
    num_trials: int  # settings of the autoscaler to try
    rate_scale: float
    seconds: float | None
    lengths: Lengths
    start_s: float
    seed: int
    json_file: Path | None
    html_file: Path | None
    png_file: Path | None

    def run(self, config_file: Path | None, flags: Mapping[str, object]) -> None:
        """Simulate, print the comparison and write the files; `flags` are the workers' options."""
        console, notes = Console(highlight=False), Console(stderr=True, highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=FILE_WIDTH)
        try:
            with notes.status(f"reading {self.trace}") as status:
                study = self._study(config_file, flags)
                comparison = self._run(study, lambda label: status.update(f"{label} is done"))
        except (LoadToolError, ValueError) as error:
            raise click.ClickException(str(error)) from error
        except BrokenProcessPool as error:
            raise click.ClickException("a simulation process was killed; the machine may be out of memory") from error
        show(comparison, console)
        try:
            self._write(comparison)
        except OSError as error:
            raise click.ClickException(str(error)) from error

    def _run(self, study: Study, note: NoteRun) -> Comparison:
        """Run on all cores if the trace is long enough to pay for starting processes."""
        num_processes = len(os.sched_getaffinity(0))
        if num_processes == 1 or len(study.requests) < MIN_REQUESTS:
            return study.run(note=note)
        with run_at_once(num_processes) as run_all:
            return study.run(run_all, note)

    def _study(self, config_file: Path | None, flags: Mapping[str, object]) -> Study:
        content = read_config_file(config_file) if config_file is not None else {}
        spec_options, options = options_of(WorkerSpec), options_of(SimulationConfig)
        given = check_section(spec_options, as_section(content.pop("spec", {}), "spec"), "spec.")
        given |= pick(spec_options, flags)
        counts = check_section(options, content) | pick(options, flags)
        block_size = granule(self.lengths)
        if "block_size" in given:
            assert isinstance(given["block_size"], int)
            block_size = given["block_size"]
        machine, description = self._machine(build(WorkerSpec, given))
        targets = Targets(self.slo.ttft_s, self.slo.tpot_s)
        machine = machine.with_block_size(block_size)
        base = DeploymentPlan(machine=machine, targets=targets, start_s=self.start_s, seed=self.seed)
        sizes = {name: value for name in POOLS if isinstance(value := counts.get(name, 0), int)}
        requested = self._requested(base, sizes)
        requests = read_trace(
            self.trace,
            lengths=self.lengths,
            block_size=block_size,
            rate_scale=self.rate_scale,
            seconds=self.seconds,
            seed=self.seed,
        )
        return Study(
            trace=self.trace.name,
            requests=requests,
            num_gpus=self.num_gpus,
            slo=self.slo,
            asked=requested,
            base=base,
            machine=description,
            num_trials=self.num_trials,
        )

    def _machine(self, spec: WorkerSpec) -> tuple[Machine, str]:
        """Return the machine and its description."""
        spec.check()
        if self.profile is not None:
            fit = fit_machine(read_profile(self.profile), spec)
            return fit.machine, f"{self.profile.name}: {fit}"
        return Machine(spec=spec), (
            f"a step takes {1e3 * spec.step_s:.3g} ms, each sequence {1e3 * spec.sequence_s:.3g} ms more, prompts "
            f"{spec.prefill_tokens_per_s:,.0f} tokens/s"
        )

    def _requested(self, base: DeploymentPlan, counts: Mapping[str, int]) -> DeploymentPlan | None:
        """Return the requested deployment; None if only the reference deployments are wanted. Raises SettingError."""
        if sum(counts.values()) > self.num_gpus:
            raise SettingError(f"--gpus {self.num_gpus}: too few for {sum(counts.values())} workers")
        if counts["colocated"] and (counts["prefill"] or self.is_autoscaled):
            raise SettingError("--colocated: can only be combined with --decode, and not with --autoscale")
        if not counts["colocated"] and bool(counts["prefill"]) is not bool(counts["decode"]):
            raise SettingError("--prefill and --decode must be given together")
        if self.is_autoscaled:
            half = counts["prefill"] or max(1, self.num_gpus // 2)
            given = {"budget_gpus": self.num_gpus, "slo": asdict(self.slo), "start_s": self.start_s}
            scaling = read_settings({**given, **self.scaling})
            return replace(base, prefill=half, decode=counts["decode"] or self.num_gpus - half, scaling=scaling)
        if not any(counts.values()):
            return None
        return replace(base, prefill=counts["prefill"], decode=counts["decode"], both=counts["colocated"])

    def _write(self, comparison: Comparison) -> None:
        if self.json_file is not None:
            self.json_file.write_text(json.dumps(to_json(comparison), indent=1) + "\n")
        if self.html_file is not None:
            self.html_file.write_text(render_page(comparison))
        if self.png_file is not None:
            draw_picture(comparison, self.png_file)


def _slo(text: str | None) -> SLO:
    """Parse --slo. Raises SettingError."""
    try:
        return SLO() if text is None else SLO.of(parse_slo(text))
    except OptionError as error:
        raise SettingError(f"--slo: {error}") from error


def _scaling(path: Path) -> Mapping[str, object]:
    """Read --scaling. Raises SettingError."""
    try:
        content = read_config_file(path)
    except OptionError as error:
        raise SettingError(f"--scaling: {error}") from error
    for name, flag in FLAGS_OF_SCALING.items():
        if name in content:
            raise SettingError(f"--scaling {path}: {name} is {flag} here")
    return content


def _given(names: Collection[str]) -> list[str]:
    """Return the flags with these parameter names that were given on the command line."""
    context = click.get_current_context()
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]


def _make_options(flags: Flags) -> TraceOptions | None:
    """Check the options before a long run, so that it does not end without its results. Raises SettingError."""
    if flags["trace"] is None:
        if given := _given(flags):
            raise SettingError(f"{given[0]} needs --trace")
        return None
    if given := _given(ONLY_SERVING):
        raise SettingError(f"{given[0]} cannot be combined with --trace, which serves no requests")
    if flags["gpus"] is None:
        raise SettingError("--trace needs --gpus")
    for path in (flags["json_file"], flags["html_file"], flags["png_file"]):
        if path is not None and not path.absolute().parent.is_dir():
            raise SettingError(f"{path}: there is no directory {path.parent}")
    if flags["png_file"] is not None and not can_draw():
        raise SettingError("--png needs matplotlib, which is not installed; --html does not")
    if (flags["scaling"] is not None or flags["tune"]) and not flags["autoscale"]:
        raise SettingError("--scaling and --tune need --autoscale")
    return TraceOptions(
        trace=flags["trace"],
        slo=_slo(flags["slo"]),
        num_gpus=flags["gpus"],
        profile=flags["profile"],
        is_autoscaled=flags["autoscale"],
        scaling={} if flags["scaling"] is None else _scaling(flags["scaling"]),
        num_trials=flags["tune"],
        rate_scale=flags["rate_scale"],
        seconds=flags["seconds"],
        lengths=Lengths(flags["scale_lengths"], flags["max_input_len"], flags["max_output_len"]),
        start_s=flags["start_s"],
        seed=flags["seed"],
        json_file=flags["json_file"],
        html_file=flags["html_file"],
        png_file=flags["png_file"],
    )


POSITIVE = click.FloatRange(0, min_open=True)

trace_flags = flag_group(
    "trace_options",
    _make_options,
    click.option("--trace", type=READ_FILE, help="Trace to replay (Mooncake or Azure format)."),
    click.option("--slo", help="SLOs for goodput [default: ttft=1s,tpot=50ms]."),
    click.option("--gpus", type=click.IntRange(1), help="Number of GPUs; each worker has one."),
    click.option("--profile", type=READ_FILE, help="Fit step times to a file of `baton bench --profile`."),
    click.option("--autoscale", is_flag=True, help="Size the pools with the autoscaler, up to --gpus."),
    click.option("--scaling", type=READ_FILE, help="YAML file with settings of the autoscaler."),
    click.option(
        "--tune", type=click.IntRange(0, 10_000), default=0, help="Settings of the autoscaler to try at random."
    ),
    click.option("--rate-scale", type=POSITIVE, default=1.0, show_default=True, help="Factor for the request rate."),
    click.option("--seconds", type=POSITIVE, help="Replay only the first seconds, after --rate-scale."),
    click.option("--scale-lengths", type=POSITIVE, default=1.0, show_default=True, help="Factor for all lengths."),
    click.option("--max-input-len", type=click.IntRange(1), help="Truncate longer prompts."),
    click.option("--max-output-len", type=click.IntRange(1), help="Truncate longer outputs."),
    click.option(
        "--start-s", type=click.FloatRange(0), default=START_S, show_default=True, help="Start time of a worker in s."
    ),
    click.option(
        "--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed of prompts and router."
    ),
    click.option("--json", "json_file", type=FILE, help="Write the results as JSON."),
    click.option("--html", "html_file", type=FILE, help="Write an HTML page with charts."),
    click.option("--png", "png_file", type=FILE, help="Write the charts as an image; needs matplotlib."),
    panel="Trace simulation",
)
