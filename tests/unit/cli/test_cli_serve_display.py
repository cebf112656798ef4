"""Console output of `baton serve`."""

import io
import json
import logging
import os
import shlex
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from baton.cli.display.serve_banner import Banner, abbreviated, program_name
from baton.cli.display.serve_progress import BarDisplay, LineDisplay, LogDisplay, describe_end, open_display
from baton.cli.options.model_source import BUNDLED
from baton.deployment.local.cluster_plan import Checkpoint, ClusterPlan
from baton.deployment.local.events import (
    ClusterReady,
    Died,
    Ending,
    Event,
    GivenUp,
    Progressed,
    ServingWorker,
    Started,
    Warned,
)
from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.config import EngineConfig
from baton.engine.execution.visible_gpus import visible_gpus
from baton.membership.rendezvous.config import RendezvousConfig
from baton.process.log_settings import LogSettings
from baton.process.progress import Failed, Loading, Ready
from baton.router.config import RouterConfig
from baton.settings.names import Role
from baton.settings.values import Value
from baton.worker.config import WorkerConfig

EVENTS: list[Event] = [
    Started("decode-0", 1, 4711),
    Progressed("decode-0", Loading(0.5)),
    Progressed("decode-0", Ready("127.0.0.1:21000")),
    ClusterReady("http://127.0.0.1:8000", 3.21),
    Warned("decode-0", "attention was not compiled"),
    Died("decode-0", "was killed by SIGKILL", 0.2),
    Started("decode-0", 2, 4712),
    Progressed("decode-0", Failed("OSError: [Errno 98] in use")),
    Ending(),
]


def plan(name: str = "tiny") -> ClusterPlan:
    roles: list[Role] = ["prefill", "decode", "decode"]
    workers = tuple(
        WorkerConfig(role=role, worker_id=f"{role}-{index}", engine=EngineConfig(model="/m"))
        for index, role in enumerate(roles)
    )
    return ClusterPlan(router=RouterConfig(model="/m", served_model_name=name), workers=workers)


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    output = io.StringIO()
    return Console(file=output, force_terminal=terminal, width=100, highlight=False, soft_wrap=True), output


READY = ClusterReady(
    "http://127.0.0.1:8000",
    3.21,
    (
        ServingWorker("prefill-0", "prefill", 10_000, 4096, ("shared_memory", "tcp")),
        ServingWorker("decode-0", "decode", 20_000, 4096, ("nixl", "shared_memory", "tcp")),
        ServingWorker("decode-1", "decode", 20_000, 4096, ("shared_memory", "tcp")),
    ),
)


def banner(planned: ClusterPlan, **engine: str | None) -> str:
    checkpoint = Checkpoint(BUNDLED, "tiny", read_model_config(BUNDLED))
    engines = dict.fromkeys(("prefill", "decode"), engine)
    return str(Banner.of(planned, checkpoint, Path("/tmp/logs"), engines, visible_gpus())(READY))


def announce(_: ClusterReady) -> Text:
    return Text("ANNOUNCEMENT")


def test_the_curl_line_can_be_pasted() -> None:
    text = banner(plan("it's mine"))
    start = text.index("curl")
    command = shlex.split(text[start : text.index("\n\n", start)])
    assert command[1] == "http://127.0.0.1:8000/v1/chat/completions"
    body = json.loads(command[command.index("-d") + 1])
    assert body["model"] == "it's mine"
    assert body["messages"][0]["role"] == "user"


def test_the_banner_names_the_command_by_its_path_if_it_is_not_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = tmp_path / "baton"
    called.write_text("#!/bin/sh\n")
    called.chmod(0o755)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert program_name(str(called)) == str(called)
    assert program_name("/somewhere/baton/__main__.py") == "baton"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program_name(str(called)) == "baton"
    spaced = tmp_path / "my tools" / "baton"
    spaced.parent.mkdir()
    spaced.write_text("#!/bin/sh\n")
    assert shlex.split(program_name(str(spaced))) == [str(spaced)]


def test_the_banner_shows_the_commit_of_a_model_of_the_hub() -> None:
    checkpoint = Checkpoint(BUNDLED, "tiny", read_model_config(BUNDLED), commit="0123456789abcdef" * 2)
    engines: dict[str, dict[str, Value]] = {"prefill": {}, "decode": {}}
    text = str(Banner.of(plan(), checkpoint, Path("/tmp/logs"), engines, visible_gpus())(READY))
    assert "  model        tiny, commit 0123456789ab, 4.99M parameters, bfloat16" in text


def test_the_banner_shows_the_model_and_its_kv_capacity() -> None:
    assert banner(plan()).splitlines()[:11] == [
        "Serving tiny at http://127.0.0.1:8000",
        "",
        "  model        tiny, 4.99M parameters, bfloat16",
        f"  device       cpu (auto: {visible_gpus().reason})",
        "  pools        1 prefill + 2 decode",
        "  KV cache     prefill: 10,000 tokens, room for 2 requests of 4,096 tokens",
        "  KV cache     decode: 40,000 tokens, room for 8 requests of 4,096 tokens",
        "  KV transfer  shared_memory, tcp",
        "  API          http://127.0.0.1:8000/v1, documented at http://127.0.0.1:8000/docs",
        "  console      http://127.0.0.1:8000/console",
        "",
    ]
    assert "  device       cpu (--device cpu)\n" in banner(plan(), device="cpu")


@pytest.mark.parametrize(("count", "text"), [(8_030_261_248, "8.03B"), (671_000_000_000, "671B"), (999, "999")])
def test_sizes_are_shown_briefly(count: int, text: str) -> None:
    assert abbreviated(count) == text


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        (Ending(3, 30.0), "Waiting for 3 requests to finish (up to 30 s); press Ctrl-C again to stop now"),
        (Ending(1, 2.5), "Waiting for 1 request to finish (up to 2.5 s); press Ctrl-C again to stop now"),
        (Ending(None, 30.0), "Waiting for requests to finish (up to 30 s); press Ctrl-C again to stop now"),
        (Ending(0, 30.0), "Shutting down; press Ctrl-C again to stop now"),
    ],
)
def test_the_shutdown_shows_what_it_waits_for(ending: Ending, text: str) -> None:
    assert describe_end(ending) == text


def test_without_a_terminal_events_are_lines() -> None:
    printer, output = console(terminal=False)
    display = LineDisplay(printer, announce)
    for event in EVENTS:
        display.show(event)
    display.close()
    assert output.getvalue().splitlines() == [
        "decode-0: starting (process 4711)",
        "decode-0: ready at 127.0.0.1:21000",
        "Ready after 3.2 s",
        "",
        "ANNOUNCEMENT",
        "decode-0: warning: attention was not compiled",
        "decode-0: was killed by SIGKILL; restarting in 0.2 s",
        "decode-0: restarting (process 4712)",
        "Shutting down; press Ctrl-C again to stop now",
    ]


def test_repeated_deaths_and_the_reason_for_the_end_have_a_line() -> None:
    printer, output = console(terminal=False)
    display = LineDisplay(printer, announce)
    display.show(Died("decode-0", "was killed by SIGKILL", 8.0, 5))
    display.show(GivenUp("decode-0 died 3 times in a row.\nlast line of the log\nIts log: decode-0.log"))
    assert output.getvalue().splitlines() == [
        "decode-0: was killed by SIGKILL; restarting in 8.0 s (death 5 in a row)",
        "Startup failed: decode-0 died 3 times in a row.",
    ]


SHOW_EVENTS = """
import sys
from baton.cli.display.serve_progress import LineDisplay, ServeConsole
from baton.deployment.local.events import Died
display = LineDisplay(ServeConsole(), None)
for _ in range(3):
    display.show(Died("decode-0", "was killed by SIGKILL", 8.0))
print("serves on", file=sys.stderr)
"""


@pytest.mark.parametrize("output", ["full", "closed"])
def test_a_closed_or_full_output_does_not_end_the_cluster(output: str) -> None:
    if output == "full":
        target = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, target = os.pipe()
        os.close(reader)
    with os.fdopen(target, "w") as stdout:
        argv = (sys.executable, "-u", "-c", SHOW_EVENTS)
        done = subprocess.run(argv, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "serves on\n")


def test_a_rendezvous_has_a_progress_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    planned = replace(plan(), rendezvous=RendezvousConfig())
    display = open_display(planned, announce)
    try:
        for spec in (*planned.rendezvous_specs(Path("logs")), *planned.specs(Path("logs"))):
            display.show(Started(spec.name, 1, 4711))
    finally:
        display.close()
    assert "rendezvous" in capsys.readouterr().out


def test_the_banner_replaces_the_progress_bars() -> None:
    printer, output = console(terminal=True)
    display = BarDisplay(printer, ["router", "decode-0"], announce)
    for event in EVENTS:
        display.show(event)
    display.close()
    text = output.getvalue()
    assert "━" in text
    assert ": starting (process" not in text  # the bar shows it
    assert text.index("━") < text.index("ANNOUNCEMENT") < text.index("was killed by SIGKILL; restarting")
    assert "restarting (process 4712)" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")  # the cursor that bars hide is shown again


def test_characters_that_the_terminal_lacks_are_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "output").open("w", encoding="ascii") as output:
        monkeypatch.setattr(sys, "stdout", output)
        display = open_display(plan(), announce)
        display.show(Warned("decode-0", "no model caf\u00e9"))
        display.close()
    assert (tmp_path / "output").read_text() == "decode-0: warning: no model caf?\n"


def test_with_json_events_are_records_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    root, output = logging.getLogger(), io.StringIO()
    handlers, level, hooks = root.handlers[:], root.level, (sys.excepthook, threading.excepthook)
    monkeypatch.setattr("sys.stderr", output)
    display = LogDisplay("http://127.0.0.1:8000", LogSettings("info", "json"))
    try:
        for event in EVENTS:
            display.show(event)
        display.close()
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(False)
        sys.excepthook, threading.excepthook = hooks
    records = [json.loads(line) for line in output.getvalue().splitlines()]
    assert {record["process"] for record in records} == {"serve"}
    assert [(record["level"], record["message"]) for record in records] == [
        ("INFO", "decode-0: starting (process 4711)"),
        ("INFO", "decode-0: ready at 127.0.0.1:21000"),
        ("INFO", "serving at http://127.0.0.1:8000, ready after 3.2 s"),
        ("WARNING", "decode-0: warning: attention was not compiled"),
        ("WARNING", "decode-0: was killed by SIGKILL; restarting in 0.2 s"),
        ("INFO", "decode-0: restarting (process 4712)"),
        ("INFO", "Shutting down; press Ctrl-C again to stop now"),
    ]
