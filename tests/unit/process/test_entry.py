"""Start and failure of a worker's or router's process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from baton.decode_worker.__main__ import main as decode_main
from baton.prefill_worker.__main__ import main as prefill_main
from baton.process.progress import Failed, Loading, parse_progress
from baton.router.__main__ import main as router_main

SCRIPT = """
import asyncio, logging, sys
from baton.engine.errors import UnsupportedModel
from baton.process.entry import ProcessOptions, run_process
from baton.process.log_format import LogSource

async def work(fails):
    logging.getLogger("engine").info("at work")
    logging.getLogger("httpx").info("noise")
    if fails:
        raise {"fail": ValueError, "refuse": UnsupportedModel, "taken": OSError}[fails]("no such layer")

fd = int(sys.argv[1])
run_process(ProcessOptions(source=LogSource("decode-7"), progress_fd=fd), lambda: work(sys.argv[2]))
"""


def run_script(mode: str) -> tuple[subprocess.CompletedProcess[str], list[bytes]]:
    read_end, write_end = os.pipe()
    command = [sys.executable, "-c", SCRIPT, str(write_end), mode]
    done = subprocess.run(command, pass_fds=(write_end,), capture_output=True, text=True, timeout=60, check=False)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        return done, pipe.read().splitlines()


def test_a_failure_is_logged_and_reported_in_one_line() -> None:
    done, lines = run_script("fail")
    assert done.returncode == 1
    assert [parse_progress(line) for line in lines] == [Loading(0), Failed("ValueError: no such layer")]
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(("mode", "kind"), [("refuse", "UnsupportedModel"), ("taken", "OSError")])
def test_plain_errors_have_no_traceback(mode: str, kind: str) -> None:
    done, lines = run_script(mode)
    assert done.returncode == 1
    assert parse_progress(lines[-1]) == Failed(f"{kind}: no such layer")
    assert done.stderr.splitlines()[1:] == [done.stderr.splitlines()[-1]]
    assert done.stderr.endswith(f"cannot go on: {kind}: no such layer\n")


def test_a_clean_end_has_status_0_and_log_lines_have_time_level_and_process() -> None:
    done, lines = run_script("")
    assert done.returncode == 0
    assert [parse_progress(line) for line in lines] == [Loading(0)]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO    decode-7 engine: at work\n", done.stderr)


@pytest.mark.parametrize(
    ("main", "arguments", "message"),
    [
        (prefill_main, ["--role", "decode", "--model", "m"], "must be one of prefill"),
        (decode_main, ["--role", "prefill", "--model", "m"], "must be one of decode"),
        (decode_main, ["--port", "70000"], "must be a whole number from 0 to 65535"),
        (router_main, ["--policy", "guess"], "must be one of cost, round_robin"),
        (router_main, [], "missing: --model"),
    ],
)
def test_invalid_options_are_refused_by_name(main: click.Command, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_the_role_may_be_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "worker.yaml"
    file.write_text("role: prefill\nengine: {model: m}\n")
    result = CliRunner().invoke(decode_main, ["--config", str(file)])
    assert result.exit_code == 2
    assert "role: 'prefill' is not allowed; it must be one of decode" in result.output


LIFELINE_SCRIPT = """
import signal, sys
from baton.process.entry import hold_lifeline, is_orphan

def on_sigterm(*_):
    print(is_orphan(), flush=True)
    if is_orphan():
        sys.exit()

signal.signal(signal.SIGTERM, on_sigterm)
hold_lifeline(int(sys.argv[1]))
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_sigterm_of_the_lifeline_differs_from_any_other() -> None:
    """The parent still runs when the child learns that it is alone."""
    read_end, write_end = os.pipe()
    command = [sys.executable, "-c", LIFELINE_SCRIPT, str(read_end)]
    with subprocess.Popen(command, pass_fds=(read_end,), stdout=subprocess.PIPE, text=True) as child:
        os.close(read_end)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.terminate()
        assert child.stdout.readline() == "False\n"
        os.close(write_end)
        assert child.stdout.readline() == "True\n"
        assert child.wait(60) == 0
