"""The compiled attention under address and undefined-behaviour sanitizers, as a program of its own."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "engine" / "native"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built with sanitizers."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("sanitized")
    (folder / "empty.cpp").write_text("int main() {}\n")
    base = [compiler, "-std=c++17", "-O1", "-g", "-ffp-contract=off", *SANITIZERS]
    probe = subprocess.run([*base, folder / "empty.cpp", "-o", folder / "empty"], check=False, capture_output=True)
    if probe.returncode:
        pytest.skip(f"{compiler} has no sanitizers: {probe.stderr.decode()[-200:]}")
    built = folder / "program"
    source = HERE / "native_attention_program.cpp"
    subprocess.run([*base, "-w", f"-I{NATIVE}", source, "-o", built, "-pthread", "-ldl"], check=True)
    return built


def test_random_steps(program: Path) -> None:
    done = subprocess.run([program], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "plain: 40 steps" in done.stdout


def test_a_block_beyond_the_pool_is_noticed(program: Path) -> None:
    done = subprocess.run([program, "beyond"], check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr
