"""The compared engines, and the conversions that their checkpoints need."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from baton.deployment.local.cluster_plan import ALLOCATOR
from baton.process.environment import OPENMP_SPINS
from benchmarks.engines.cells import Series
from benchmarks.engines.compressed_tensors import write_int8
from benchmarks.engines.engine_process import DRIVERS, ROOT
from benchmarks.engines.peers import LLAMA_CPP, OPENVINO, VLLM, PeerEnvironment

OURS = "baton"


@dataclass(frozen=True, slots=True)
class Contestant:
    """An engine and its driver."""

    name: str
    driver: str
    peer: PeerEnvironment | None  # None: runs in this environment
    variables: Mapping[str, str] = field(default_factory=dict)  # {folder}: its environment's folder
    convert: Callable[[Path, Path, str, Path], None] | None = None  # arguments: Python, checkpoint, weights, target
    lacks: Callable[[Series], str] = lambda series: ""  # why it cannot run a series; empty if it can

    def python(self, peers: Path) -> Path:
        """Return its Python. Raises FileNotFoundError if its environment is missing."""
        return Path(sys.executable) if self.peer is None else self.peer.python(peers)

    def environment(self, peers: Path) -> dict[str, str]:
        """Return the additional environment variables of its process."""
        folder = peers / self.peer.name if self.peer is not None else ROOT
        return {name: value.format(folder=folder) for name, value in self.variables.items()}

    def model(self, checkpoint: Path, series: Series, peers: Path, directory: Path) -> Path:
        """Return the checkpoint in the engine's format; converted into `directory` the first time."""
        if self.convert is None:
            return checkpoint
        target = directory / "converted" / f"{checkpoint.name}-{self.name}-{series.weights}"
        if not target.exists():
            unfinished = target.with_name(f"{target.name}.unfinished")
            if unfinished.is_dir():
                shutil.rmtree(unfinished)
            unfinished.parent.mkdir(parents=True, exist_ok=True)
            self.convert(self.python(peers), checkpoint, series.weights, unfinished)
            unfinished.rename(target)
        return target


def _to_openvino(python: Path, checkpoint: Path, weights: str, target: Path) -> None:
    quantised = ["--weight-format", "int8"] if weights == "int8" else []
    task = ["--task", "text-generation-with-past"]
    exporter = python.with_name("optimum-cli")
    _run(str(exporter), "export", "openvino", "--model", str(checkpoint), *task, *quantised, str(target))


def _to_gguf(python: Path, checkpoint: Path, weights: str, target: Path) -> None:
    quantised = ["q8_0"] if weights == "int8" else []
    _run(str(python), str(DRIVERS / "gguf_conversion.py"), str(checkpoint), str(target), *quantised)


def _to_compressed_tensors(_: Path, checkpoint: Path, weights: str, target: Path) -> None:
    if weights == "int8":
        write_int8(checkpoint, target)
    else:
        target.symlink_to(checkpoint.resolve())


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-3000:]}")


def _vllm_lacks(series: Series) -> str:
    return "its CPU backend has no int8 KV cache" if series.kv_cache == "int8" else ""


def _transformers_lacks(series: Series) -> str:
    return "it has no native int8 for CPUs" if "int8" in (series.weights, series.kv_cache) else ""


CONTESTANTS = (
    Contestant(OURS, "baton_driver", None, {"PYTHONPATH": "{folder}", **OPENMP_SPINS, **ALLOCATOR}),
    Contestant("openvino", "openvino_driver", OPENVINO, convert=_to_openvino),
    Contestant(
        "vllm",
        "vllm_driver",
        VLLM,
        {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the process is already pinned to its cores
            "LD_PRELOAD": "{folder}/lib/libiomp5.so",  # as its documentation recommends
            "VLLM_CACHE_ROOT": "{folder}/cache",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        },
        convert=_to_compressed_tensors,
        lacks=_vllm_lacks,
    ),
    Contestant("llama_cpp", "llama_cpp_driver", LLAMA_CPP, convert=_to_gguf),
    Contestant("transformers", "transformers_driver", None, lacks=_transformers_lacks),
)


def contestants_by_name(names: Sequence[str]) -> list[Contestant]:
    """Return the named contestants, in the order above; all if none is named. Raises ValueError for unknown names."""
    known = [each.name for each in CONTESTANTS]
    if unknown := set(names) - set(known):
        raise ValueError(f"{', '.join(sorted(unknown))}: there is no such engine, only {', '.join(known)}")
    return [each for each in CONTESTANTS if not names or each.name in names]
