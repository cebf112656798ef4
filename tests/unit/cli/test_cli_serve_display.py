"""What `baton serve` shows."""

import io
import json
import shlex
from pathlib import Path

from rich.console import Console

from baton.cli.serve_display import BarDisplay, LineDisplay, announce
from baton.deployment.cluster_plan import ClusterPlan
from baton.deployment.events import ClusterReady, Died, Ending, Event, Progressed, Started
from baton.engine.config import EngineConfig
from baton.router.config import RouterConfig
from baton.rpc.progress import Failed, Loading, Ready
from baton.rpc.worker_config import Role, WorkerConfig

EVENTS: list[Event] = [
    Started("decode-0", 1, 4711),
    Progressed("decode-0", Loading(0.5)),
    Progressed("decode-0", Ready("127.0.0.1:21000")),
    ClusterReady("http://127.0.0.1:8000", 3.21),
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


def test_the_curl_line_can_be_pasted() -> None:
    text = announce(plan("it's mine"), Path("/tmp/logs"))
    assert "Serving it's mine at http://127.0.0.1:8000 (1 prefill + 2 decode)" in text
    start = text.index("curl")
    command = shlex.split(text[start : text.index("\n\n", start)])
    assert command[1] == "http://127.0.0.1:8000/v1/chat/completions"
    body = json.loads(command[command.index("-d") + 1])
    assert body["model"] == "it's mine"
    assert body["messages"][0]["role"] == "user"


def test_lines_where_there_is_no_terminal() -> None:
    printer, output = console(terminal=False)
    display = LineDisplay(printer, "ANNOUNCEMENT")
    for event in EVENTS:
        display.show(event)
    display.close()
    assert output.getvalue().splitlines() == [
        "decode-0: starting (process 4711)",
        "decode-0: ready at 127.0.0.1:21000",
        "Ready after 3.2 s",
        "",
        "ANNOUNCEMENT",
        "decode-0: was killed by SIGKILL; starting again in 0.2 s",
        "decode-0: starting again (process 4712)",
        "Ending (Ctrl-C again: at once)",
    ]


def test_bars_in_a_terminal_give_way_to_the_announcement() -> None:
    printer, output = console(terminal=True)
    display = BarDisplay(printer, ["router", "decode-0"], "ANNOUNCEMENT")
    for event in EVENTS:
        display.show(event)
    display.close()
    text = output.getvalue()
    assert "━" in text
    assert "starting (process" not in text  # the bar says it
    assert text.index("━") < text.index("ANNOUNCEMENT") < text.index("was killed by SIGKILL; starting again")
    assert "starting again (process 4712)" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")  # the cursor that bars hide is shown again
