"""Summary that `baton serve` prints once it is ready: model, device, capacity, URL, and example requests."""

import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from baton.deployment.local.cluster_plan import Checkpoint, ClusterPlan
from baton.deployment.local.events import ClusterReady, ServingWorker
from baton.engine.checkpoint.weight_memory import num_parameters
from baton.engine.execution.visible_gpus import VisibleGpus
from baton.settings.values import Value
from baton.worker.config import WorkerConfig

LABEL_WIDTH = 13
COMMIT_DIGITS = 12
UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))


@dataclass(frozen=True, slots=True)
class Banner:
    """Summary of a cluster plan; capacities and transports come from the workers, in the ClusterReady event."""

    plan: ClusterPlan
    log_dir: Path
    model: str  # commit, size and type
    devices: str

    @classmethod
    def of(
        cls,
        plan: ClusterPlan,
        checkpoint: Checkpoint,
        log_dir: Path,
        engines: Mapping[str, Mapping[str, Value]],
        gpus: VisibleGpus,
    ) -> "Banner":
        """Make the summary of a plan. Raises InvalidCheckpoint.

        `engines` holds the engine options set by the user, by role; `gpus` are those that `--device auto` considered.
        """
        size = abbreviated(num_parameters(checkpoint.directory, checkpoint.config))
        devices = dict.fromkeys(_device(worker, engines[worker.role].get("device"), gpus) for worker in plan.workers)
        types = [checkpoint.config.dtype]
        engine = plan.workers[-1].engine
        if engine.quantization is not None:
            types.append(f"weights in {engine.quantization}")
        if checkpoint.config.stored_quantization is not None:
            types.append(f"weights stored in {checkpoint.config.stored_quantization.name}")
        if engine.kv_cache_dtype not in ("auto", checkpoint.config.dtype):
            types.append(f"KV in {engine.kv_cache_dtype}")
        commit = "" if checkpoint.commit is None else f"commit {checkpoint.commit[:COMMIT_DIGITS]}, "
        return cls(plan, log_dir, f"{commit}{size} parameters, {', '.join(types)}", ", ".join(devices))

    def __call__(self, ready: ClusterReady) -> Text:
        """Return the summary as text."""
        name, url = self.plan.router.model_name, self.plan.url
        rows = (
            ("model", f"{name}, {self.model}"),
            ("device", self.devices),
            ("pools", self._pools()),
            *(("KV cache", line) for line in _capacities(ready.workers)),
            ("KV transfer", _transports(ready.workers)),
            ("API", f"{url}/v1, documented at {url}/docs"),
            *((("console", f"{url}/console"),) if self.plan.router.console else ()),
        )
        block = Text(f"Serving {name} at {url}\n\n")
        for label, text in rows:
            block.append(f"  {label:<{LABEL_WIDTH}}", "bold").append(f"{text}\n")
        return block.append(self._examples())

    def _pools(self) -> str:
        roles = [worker.role for worker in self.plan.workers]
        names = {"both": "colocated"}
        return " + ".join(f"{roles.count(role)} {names.get(role, role)}" for role in dict.fromkeys(roles))

    def _examples(self) -> str:
        url, program = self.plan.url, program_name(sys.argv[0])
        messages = [{"role": "user", "content": "What does a file do?"}]
        quoted = json.dumps({"model": self.plan.router.model_name, "messages": messages}).replace("'", "'\\''")
        return (
            f"\n  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n    -d '{quoted}'\n\n"
            f"  {program} chat --url {url}      {program} status --url {url}\n\n"
            f"Logs are in {self.log_dir}. Press Ctrl-C to stop."
        )


def program_name(called: str) -> str:
    """Return the word by which a shell finds this program: `called` if `PATH` has no `baton` or another one."""
    if Path(called).name != "baton" or not Path(called).is_file():  # python -m baton
        return "baton"
    found = shutil.which("baton")
    return "baton" if found is not None and Path(found).samefile(called) else shlex.quote(called)


def abbreviated(count: int) -> str:
    """Abbreviate a large number as model names do, such as 1.7B."""
    for unit, letter in UNITS:
        if count >= unit:
            return f"{count / unit:.3g}{letter}"
    return str(count)


def _device(worker: WorkerConfig, requested: Value, gpus: VisibleGpus) -> str:
    device = worker.engine.device
    is_auto = requested in (None, "auto")
    reason = f"auto: {gpus.reason}" if is_auto else f"--device {requested}"
    return f"{device} ({reason})"


def _capacities(workers: tuple[ServingWorker, ...]) -> list[str]:
    """Return the KV capacity of each pool, one line a pool."""
    lines = []
    for role in dict.fromkeys(worker.role for worker in workers):
        pool = [worker for worker in workers if worker.role == role]
        longest = min(worker.max_model_len for worker in pool)
        num_requests = sum(worker.kv_tokens // longest for worker in pool)
        num_tokens = sum(worker.kv_tokens for worker in pool)
        noun = "request" if num_requests == 1 else "requests"
        lines.append(f"{role}: {num_tokens:,} tokens, room for {num_requests:,} {noun} of {longest:,} tokens")
    return lines


def _transports(workers: tuple[ServingWorker, ...]) -> str:
    """Return the KV transports that all workers support."""
    common = set.intersection(*(set(worker.transports) for worker in workers)) if workers else set()
    return ", ".join(sorted(common)) or "none"
