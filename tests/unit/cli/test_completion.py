"""Completion in real shells."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from baton.deployment.local.detached.folder import ServerFolder
from baton.deployment.local.detached.record import ServerRecord, write_record

TIMEOUT_S = 60.0
# Calls the function that `complete` would call, and prints what it offers; compopt only works inside of a completion.
COMPLETE_IN_BASH = """
source <(baton completion bash)
compopt() { echo "$@"; }
while IFS= read -r line; do
    read -r -a COMP_WORDS <<< "$line"
    [[ $line == *' ' ]] && COMP_WORDS+=('')
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
    _baton_completion baton
    echo "${COMPREPLY[@]}"
done
"""


def environment(**more: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TERM": "dumb", **more}


def test_bash_completes_commands_options_choices_paths_and_servers(tmp_path: Path) -> None:
    env = environment(XDG_STATE_HOME=str(tmp_path))
    for name in ("qwen", "quick", "gemma"):
        folder = ServerFolder.named(name, env)
        folder.make()
        write_record(folder.record_path, ServerRecord(8000, "/log", 0.0))
    expected = {
        "baton st": "stop status",
        "baton key ": "check new",
        "baton serve --transport ": "auto shared_memory nixl tcp nccl staged",
        "baton stop q": "quick qwen",
        "baton serve --log-dir ": "-o dirnames\n",
    }
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE_IN_BASH],
        input="".join(f"{line}\n" for line in expected),
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "".join(f"{offered}\n" for offered in expected.values())
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "options", "setup", "typed", "shown"),
    [
        (
            "bash",
            ["--norc", "--noprofile"],
            "source <(baton completion bash)",
            "baton ser\t--transport sh\t",
            "shared_memory",
        ),
        pytest.param(
            *("zsh", ["-f"], "autoload -U compinit; compinit -u -D; source <(baton completion zsh)"),
            *("baton ser\t--transport sh\t", "shared_memory"),
            marks=pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed"),
        ),
        pytest.param(
            *("fish", ["--private"], "baton completion fish | source", "baton ser\t--transport sh\t", "shared_memory"),
            marks=pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed"),
        ),
    ],
)
def test_the_tab_key_completes(
    shell: str, options: list[str], setup: str, typed: str, shown: str, tmp_path: Path
) -> None:
    terminal, inner = pty.openpty()
    env = environment(HOME=str(tmp_path), PS1="ready> ", INPUTRC="/dev/null", HISTFILE="/dev/null")
    argv = ["setsid", "--ctty", shell, *options, "-i"]  # the terminal is its own, as fish demands
    process = subprocess.Popen(argv, stdin=inner, stdout=inner, stderr=inner, env=env, cwd=tmp_path)
    os.close(inner)
    try:
        os.write(terminal, f"{setup}; echo 'set'-up\n".encode())
        read_until(terminal, "\nset-up")
        os.write(terminal, typed.encode())
        assert "serve" in read_until(terminal, shown)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def read_until(terminal: int, expected: str) -> str:
    """Return what a terminal shows until a text is in it, without carriage returns and escapes."""
    shown, deadline_s = "", time.monotonic() + TIMEOUT_S
    while expected not in shown:
        assert select.select([terminal], [], [], max(0.0, deadline_s - time.monotonic()))[0], shown
        shown += os.read(terminal, 4096).decode(errors="replace")
        shown = re.sub(r"\r|\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    return shown


def test_completing_imports_nothing_heavy() -> None:
    code = (
        "import sys, atexit; from baton.__main__ import main;"
        "atexit.register(lambda: print([each for each in ('torch', 'transformers', 'grpc') if each in sys.modules]));"
        "main(prog_name='baton')"
    )
    env = {"_BATON_COMPLETE": "bash_complete", "COMP_WORDS": "baton serve --transport ", "COMP_CWORD": "3"}
    done = subprocess.run([sys.executable, "-c", code], env=environment(**env), capture_output=True, text=True)
    assert done.stdout.split() == [
        *(f"plain,{each}" for each in ["auto", "shared_memory", "nixl", "tcp", "nccl", "staged"]),
        "[]",
    ]


def test_the_shell_is_that_of_the_user_or_has_to_be_named() -> None:
    def complete(shell: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "baton", "completion"]
        return subprocess.run(argv, env=environment(SHELL=shell), capture_output=True, text=True)

    assert complete("/usr/bin/fish").stdout.startswith("function _baton_completion")
    assert "tcsh is not supported; it must be one of bash, zsh, fish" in complete("/bin/tcsh").stderr
