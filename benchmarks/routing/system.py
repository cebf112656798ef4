"""Compared systems: the commands of workers and router, and the request format."""

import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

from benchmarks.http_load import post
from benchmarks.routing.router_process import RouterProcess, started_router
from benchmarks.routing.topology import Topology
from benchmarks.routing.workers.process import WorkerProcess, started_workers
from benchmarks.server import free_port

MODEL = "bench"
CONTEXT_TOKENS = 1 << 17
# Baseline systems by their workers; see `passing`.
NOTHING, NOTHING_HTTP, NOTHING_DYNAMO = "nothing (gRPC)", "nothing (HTTP)", "nothing (dynamo)"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


@dataclass(frozen=True, slots=True)
class Setting:
    """Paths of a comparison."""

    peers_python: Path
    model: Path  # a directory with a tokenizer and config.json


@dataclass(frozen=True, slots=True)
class Command:
    """Arguments of a Python process, and additional environment variables."""

    arguments: list[str]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Served:
    """A ready router and its workers."""

    routers: list[RouterProcess]
    workers: WorkerProcess


Body = Callable[[list[int], int], bytes]
Messages = Sequence[Mapping[str, str]]
Chat = Callable[[Messages, int, bool], bytes]  # messages, output tokens and whether to stream: a whole HTTP request


def chat_body(messages: Messages, num_output_tokens: int, stream: bool) -> bytes:
    """Return the body of an OpenAI chat completion, which every router supports."""
    return orjson.dumps(
        {"model": MODEL, "messages": messages, "max_tokens": num_output_tokens, "temperature": 0, "stream": stream}
    )


def openai_chats(setting: Setting) -> Chat:
    """Return a builder of OpenAI chat requests."""
    return lambda messages, num_output_tokens, stream: post(
        "/v1/chat/completions", chat_body(messages, num_output_tokens, stream)
    )


@dataclass(frozen=True, slots=True)
class System:
    """One router in one setting."""

    name: str
    is_peer: bool  # its router runs in the peers' environment
    worker_module: str
    path: str  # endpoint for prompts of token ids
    body: Body
    router: Callable[[Setting, Topology, list[str], int], Command]
    workers_are_peers: bool = False  # its workers run there too
    shares_files: bool = False  # discovery through files, in a folder set by an environment variable
    chats: Callable[[Setting], Chat] = openai_chats
    floor: str = ""  # name of the baseline system with the same workers

    @asynccontextmanager
    async def serve(self, setting: Setting, topology: Topology, num_routers: int = 1) -> AsyncIterator[Served]:
        """Run workers and routers until the end of the block. They listen, but may not be ready yet."""
        own = Path(sys.executable)
        python = setting.peers_python if self.is_peer else own
        worker_python = setting.peers_python if self.workers_are_peers else own
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="routing-"))
            environment = {"DYN_FILE_KV": folder, "DYN_LOG": "error"} if self.shares_files else {}
            workers = await stack.enter_async_context(
                started_workers(
                    worker_python, self.worker_module, [topology.to_json(), str(setting.model)], environment
                )
            )
            routers = []
            for _ in range(num_routers):
                port = free_port()
                command = self.router(setting, topology, workers.addresses, port)
                routers.append(
                    await stack.enter_async_context(
                        started_router(python, command.arguments, {**environment, **command.environment}, port)
                    )
                )
            yield Served(routers, workers)


def completions_body(token_ids: list[int], num_output_tokens: int) -> bytes:
    """Return the body of an OpenAI completion."""
    return orjson.dumps(
        {"model": MODEL, "prompt": token_ids, "max_tokens": num_output_tokens, "temperature": 0, "stream": True}
    )


def generate_body(token_ids: list[int], num_output_tokens: int) -> bytes:
    """Return the body for SGLang's own endpoint, as text: its router's prefill/decode mode routes only text prompts."""
    text = " ".join(map(str, token_ids))
    return orjson.dumps({"text": text, "sampling_params": {"max_new_tokens": num_output_tokens}, "stream": True})


def make_model(bundled: Path, folder: Path) -> Path:
    """Create a model directory with the bundled tokenizer, a longer context and no weights."""
    for name in TOKENIZER_FILES:
        shutil.copy(bundled / name, folder / name)
    for name, key in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
        config = json.loads((bundled / name).read_text())
        (folder / name).write_text(json.dumps({**config, key: CONTEXT_TOKENS}))
    return folder


def baton(policy: str, name: str, *options: str) -> System:
    """Return a Baton system with one of its policies."""

    def router(setting: Setting, topology: Topology, addresses: list[str], port: int) -> Command:
        return Command(
            ["baton.router", "--model", str(setting.model), "--served-model-name", MODEL, "--port", str(port),
             "--workers", ",".join(addresses), "--policy", policy, "--log-level", "warning", *options],
            {},
        )  # fmt: skip

    return System(name, False, "baton", "/v1/completions", completions_body, router, floor=NOTHING)


def sglang(name: str, *options: str, pd_options: tuple[str, ...] = ()) -> System:
    """Return SGLang's router with HTTP workers, which tokenise themselves."""

    def router(setting: Setting, topology: Topology, addresses: list[str], port: int) -> Command:
        workers = ["--worker-urls", *addresses]
        if topology.is_disaggregated:
            workers = ["--pd-disaggregation", *pd_options]
            for role, address in zip(topology.roles, addresses, strict=True):
                workers += [f"--{role}", address, *(["8998"] if role == "prefill" else [])]
        return Command(
            ["sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port), "--model-path",
             str(setting.model), "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()),
             "--log-level", "error", *workers, *options],
            {"no_proxy": "*", "NO_PROXY": "*"},
        )  # fmt: skip

    return System(name, True, "sglang", "/generate", generate_body, router, floor=NOTHING_HTTP)


def dynamo(name: str, *options: str, pd_options: tuple[str, ...] = ()) -> System:
    """Return Dynamo's frontend, which tokenises, with cache events of every worker."""

    def router(setting: Setting, topology: Topology, addresses: list[str], port: int) -> Command:
        workers = pd_options if topology.is_disaggregated else ()
        return Command(
            ["dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port), "--discovery-backend", "file",
             "--request-plane", "tcp", "--event-plane", "zmq", "--router-mode", "kv", *options, *workers],
            {},
        )  # fmt: skip

    return System(name, True, "dynamo", "/v1/completions", completions_body, router, True, True, floor=NOTHING_DYNAMO)
