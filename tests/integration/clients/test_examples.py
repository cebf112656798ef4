"""The programs in examples/, as a user runs them, with the bundled model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
CLIENTS = ROOT / ".venv" / "clients" / "bin" / "python"
DOCUMENT = "The harbour of Oslo is open from six in the morning. Its crane lifts forty tonnes. " * 8


def run(name: str, *arguments: str, python: Path = Path(sys.executable), text: str = "") -> str:
    """Run an example and return its output."""
    argv = [python, EXAMPLES / name, *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=280, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_document_of_a_pin_is_cached_for_questions(cluster_url: str, tmp_path: Path) -> None:
    document = tmp_path / "harbour.txt"
    document.write_text(DOCUMENT)
    output = run("rag_pinned_document.py", cluster_url, str(document), "When is it open?", "What does the crane lift?")
    num_pinned = int(output.split()[1])
    num_cached = [int(line.split()[0][1:]) for line in output.splitlines() if line.endswith("tokens were cached]")]
    assert num_pinned > 100
    assert len(num_cached) == 2
    assert num_cached[-1] >= num_pinned  # the router may learn of the pinned blocks after the first question


@pytest.mark.slow
def test_a_chat_has_its_history_in_the_cache(cluster_url: str) -> None:
    output = run("chat_with_history.py", cluster_url, text="What does json.dumps do?\nWhat does a file do?\n")
    [first, second] = [int(line.split()[0][1:]) for line in output.splitlines() if line.startswith("[")]
    assert second > first


@pytest.mark.slow
def test_an_agent_calls_its_tool_and_answers(cluster_url: str) -> None:
    output = run("agent_with_tools.py", cluster_url)
    assert output.startswith("get_weather({")
    assert "7 degrees" in output


@pytest.mark.slow
@pytest.mark.parametrize("name", ["langchain_chain.py", "llama_index_chat.py"])
def test_an_example_of_a_client_library_prints_answers(cluster_url: str, name: str) -> None:
    assert CLIENTS.exists(), "the client libraries are not installed: `make test-all` installs them"
    assert len(run(name, cluster_url, python=CLIENTS).splitlines()) >= 3


@pytest.mark.slow
def test_prompts_are_completed_without_a_server() -> None:
    assert run("offline_generate.py").count("->") == 3


@pytest.mark.slow
def test_a_file_of_prompts_keeps_its_lines(tmp_path: Path) -> None:
    lines = [
        {"prompt": "A list in Python is", "max_tokens": 5, "temperature": 0},
        {"messages": [{"role": "user", "content": "What does a file do?"}], "max_tokens": 6},
        {"prompt": "To open a file,", "max_tokens": 7, "ignore_eos": True},
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run("batch_file.py", str(source), str(target))
    found = [json.loads(line) for line in target.read_text().splitlines()]
    assert [{key: line[key] for key in given} for line, given in zip(found, lines, strict=True)] == lines
    assert found[2]["finish_reason"] == "length"
    assert all(isinstance(line["output"], str) for line in found)


def test_every_example_is_listed_and_configurations_name_the_api() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    entries = [path for path in EXAMPLES.iterdir() if path.name != "README.md"]
    assert [path.name for path in entries if f"({path.name}" not in listed] == []
    [model] = yaml.safe_load((EXAMPLES / "litellm" / "config.yaml").read_text())["model_list"]
    assert model["litellm_params"]["api_base"].endswith("/v1")
    services = yaml.safe_load((EXAMPLES / "open_webui" / "compose.yaml").read_text())["services"]
    assert services["open-webui"]["environment"]["OPENAI_API_BASE_URL"].endswith("/v1")
