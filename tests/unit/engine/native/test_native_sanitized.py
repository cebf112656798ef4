"""The compiled code under address and undefined-behaviour sanitizers, as separate programs."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
NATIVE = HERE.parents[3] / "engine" / "native"
NOT_HERE = "this processor has no"
MEMORY = "address,undefined"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Build one of the programs next to this file with sanitizers, once with each."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("sanitized")
    (folder / "empty.cpp").write_text("int main() {}\n")
    base = [compiler, "-O1", "-g", "-ffp-contract=off", "-fno-sanitize-recover=all", "-pthread"]

    def built(name: str, sanitizers: str = MEMORY, standard: str = "c++17") -> Path:
        program, command = folder / f"{name}-{sanitizers}", [*base, f"-fsanitize={sanitizers}", f"-std={standard}"]
        if not program.exists():
            probe = subprocess.run([*command, folder / "empty.cpp", "-o", folder / "empty"], capture_output=True)
            if probe.returncode:
                pytest.skip(f"{compiler} has no such sanitizers: {probe.stderr.decode()[-200:]}")
            subprocess.run([*command, "-w", f"-I{NATIVE}", HERE / f"{name}.cpp", "-o", program], check=True)
        return program

    return built


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("native_attention_program", "plain: 60 steps"),
        ("layer_ops_program", "plain: all widths"),
        ("products_program", "all shapes"),
        ("grouped_program", "plain: all groups"),
    ],
)
def test_native_code_passes_the_memory_sanitizers(build: Callable[..., Path], name: str, expected: str) -> None:
    done = subprocess.run([build(name)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    if NOT_HERE in done.stdout:
        pytest.skip(done.stdout)
    assert expected in done.stdout


@pytest.mark.parametrize(
    "name", ["native_attention_program", "layer_ops_program", "products_program", "grouped_program"]
)
def test_an_out_of_bounds_access_is_reported(build: Callable[..., Path], name: str) -> None:
    environment = {**os.environ, "ASAN_OPTIONS": "symbolize=0"}  # the names of symbols take 20 s and are not needed
    done = subprocess.run([build(name), "beyond"], check=False, capture_output=True, text=True, env=environment)
    if NOT_HERE in done.stdout:
        pytest.skip(done.stdout)
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr


@pytest.mark.parametrize(
    ("sanitizers", "arguments", "expected"),
    [("thread", [], "all calls"), (MEMORY, [], "all calls"), (MEMORY, ["fork"], "all forks")],
)
def test_the_thread_team_passes_the_sanitizers(
    build: Callable[..., Path], sanitizers: str, arguments: list[str], expected: str
) -> None:
    program = build("thread_team_program", sanitizers, "c++20")
    done = subprocess.run([program, *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"{expected}\n"
