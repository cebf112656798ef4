"""The compiled code under address and undefined-behaviour sanitizers, as programs of its own."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "engine" / "native"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds one of the programs beside this file with sanitizers, once."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("sanitized")
    (folder / "empty.cpp").write_text("int main() {}\n")
    base = [compiler, "-std=c++17", "-O1", "-g", "-ffp-contract=off", *SANITIZERS]
    probe = subprocess.run([*base, folder / "empty.cpp", "-o", folder / "empty"], check=False, capture_output=True)
    if probe.returncode:
        pytest.skip(f"{compiler} has no sanitizers: {probe.stderr.decode()[-200:]}")

    def built(name: str) -> Path:
        program = folder / name
        if not program.exists():
            source = HERE / f"{name}.cpp"
            subprocess.run([*base, "-w", f"-I{NATIVE}", source, "-o", program, "-pthread", "-ldl"], check=True)
        return program

    return built


@pytest.mark.parametrize(
    ("name", "said"), [("native_attention_program", "plain: 40 steps"), ("layer_ops_program", "plain: all widths")]
)
def test_it_reads_and_writes_what_is_its_own(build: Callable[[str], Path], name: str, said: str) -> None:
    done = subprocess.run([build(name)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout


@pytest.mark.parametrize("name", ["native_attention_program", "layer_ops_program"])
def test_what_is_beyond_is_noticed(build: Callable[[str], Path], name: str) -> None:
    done = subprocess.run([build(name), "beyond"], check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr
