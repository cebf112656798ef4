"""Conformance of a router with a real worker to its /openapi.json, in requests and responses."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import schemathesis
from hypothesis import Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from baton.router.openai.structured_output import StructuredOutputFields
from baton.router.pins.api import PINS
from baton.router.pins.placement import PREFIX_TOO_SHORT
from tests.fuzz.fuzzing import Fuzzing
from tests.fuzz.router_rig import MODEL_NAME, RouterRig
from tests.integration.router_process import MODEL, RouterProcess, router_process, wait_workers
from tests.integration.worker_process import worker_process
from tests.marks import slow_case

TIMEOUT_S = 20.0
MAX_TOKENS = 3
VOCAB_SIZE = 4096
CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance, negative_data_rejection, positive_data_acceptance,
]  # fmt: skip
GENERATING = ("/v1/chat/completions", "/v1/completions")
EMBEDDING_OPTIONS = ("model", "dimensions", "truncate_prompt_tokens", "use_activation")  # bounds depend on the model
JsonObject = dict[str, Any]


class RealWorkerRig(RouterRig):
    """A router with one real worker, which prefills, decodes and makes embeddings."""

    async def _start(self, directory: Path) -> RouterProcess:
        options = ("--pooling=last", "--log-level=error")
        worker = await self._stack.enter_async_context(worker_process("both", MODEL, directory, *options))
        parsers = ("--tool-call-parser=hermes", "--reasoning-parser=qwen3")
        flags = ("--port=0", "--grpc-port=0", f"--workers={worker.address}", "--max-choices=3", *parsers)
        router = await self._stack.enter_async_context(router_process(directory, *flags))
        async with router.client() as client:
            await wait_workers(client, 1)
        return router

    def check_serves(self) -> None:
        """Release the pins that requests have made, whose blocks are not free, and check as for any router."""
        for pin in self.http.get(PINS).json()["data"]:
            assert self.http.delete(f"{PINS}/{quote(pin['id'], safe='')}").status_code == 200
        super().check_serves()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterRig]:
    """A router with a real worker."""
    rig = RealWorkerRig(tmp_path_factory.mktemp("real"))
    yield rig
    rig.close()


@dataclass
class DescriptionCheck:
    """A check of responses against the description."""

    num_accepted: int = 0

    def __call__(self, case: Case) -> None:
        """Fail if the server accepts, refuses or responds other than described."""
        is_valid = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
        if is_valid and case.path in GENERATING:
            case.body = consistent(case.body)
        elif is_valid and case.path.startswith("/v1/messages"):
            case.body = consistent_messages(case.body)
        elif is_valid and case.path == "/v1/responses":
            case.body = consistent_response(case.body)
        elif is_valid and case.path in ("/tokenize", PINS) and case.method == "POST":
            with_known_functions(case.body)
        elif is_valid and case.path == "/v1/embeddings":
            for name in EMBEDDING_OPTIONS:
                case.body.pop(name, None)
        response = case.call(timeout=TIMEOUT_S)
        self.num_accepted += response.status_code == 200 and case.method == "POST"
        checks = list(CHECKS)
        if response.status_code == 400 and depends_on_the_model(response.json()["error"]):
            checks.remove(positive_data_acceptance)
        case.validate_response(response, checks=checks)


@pytest.mark.slow
def test_random_requests_conform_to_the_description(fuzzing: Fuzzing, real: RouterRig) -> None:
    schema = schemathesis.openapi.from_url(f"{real.router.url}/openapi.json")
    check = DescriptionCheck()
    operations = [operation.ok() for operation in schema.get_all_operations() if is_strict(operation.ok().path)]
    inputs = [each.as_strategy(generation_mode=mode) for each in operations for mode in GenerationMode]
    fuzzing.run_all([(each, check) for each in filter(is_possible, inputs)], 1)
    assert check.num_accepted > 3
    real.check_serves()


@pytest.mark.parametrize(("path", "num_accepted"), [slow_case("/v1/completions", 0), slow_case("", 100)])
def test_every_bound_of_every_field_is_enforced(real: RouterRig, path: str, num_accepted: int) -> None:
    schema = schemathesis.openapi.from_url(f"{real.router.url}/openapi.json")
    check = DescriptionCheck()
    for operation in schema.get_all_operations():
        if not is_strict(operation.ok().path) or path not in ("", operation.ok().path):
            continue
        cases = schema.iter_coverage_cases(
            operation.ok(), generation_modes=list(GenerationMode), generation_config=schema.config.generation
        )
        for case in cases:
            check(case)
    assert check.num_accepted > num_accepted
    real.check_serves()


def depends_on_the_model(error: JsonObject) -> bool:
    """Return whether an error says what no schema can: a prompt is too long or short, or no images are taken."""
    if "takes no images" in error["message"]:
        return True
    if "code" in error:
        return error["code"] in ("context_length_exceeded", PREFIX_TOO_SHORT)
    return any(text in error["message"] for text in ("prompt is too long", "exceed context limit", "context length"))


def is_strict(path: str) -> bool:
    """Return whether the schema of a path has all of its rules: those of tensors depend on their names."""
    return not path.startswith("/v2")


def is_possible(inputs: st.SearchStrategy[Case]) -> bool:
    """Return whether the strategy can generate an example."""
    try:
        find(inputs, lambda _: True, settings=settings(max_examples=5, database=None, phases=(Phase.generate,)))
    except Unsatisfiable:
        return False
    return True


def consistent(body: JsonObject) -> JsonObject:
    """Return a body with a short output that satisfies the rules that JSON Schema cannot express."""
    body = {**body, "model": MODEL_NAME}
    if body.get("max_tokens") != 0:
        body["max_tokens"] = MAX_TOKENS
    for name, bound in (("max_completion_tokens", MAX_TOKENS), ("min_tokens", 1), ("best_of", 1)):
        if body.get(name) is not None:
            body[name] = min(body[name], bound)
    for name in StructuredOutputFields.__annotations__:  # a schema cannot say which grammars can be compiled
        body.pop(name, None)
    with_known_functions(body)
    if isinstance(body.get("prompt"), list):
        body["n"] = 1
    if body.get("logit_bias"):
        body["logit_bias"] = {str(int(name) % VOCAB_SIZE): bias for name, bias in body["logit_bias"].items()}
    return body


def consistent_response(body: JsonObject) -> JsonObject:
    """Return a request for a short response that satisfies the rules that JSON Schema cannot express."""
    body = {**body, "model": MODEL_NAME, "max_output_tokens": MAX_TOKENS}
    body.pop("reasoning", None)  # the chat template has no such option
    body.pop("text", None)  # a schema cannot say which grammars can be compiled
    if body.get("min_tokens") is not None:
        body["min_tokens"] = min(body["min_tokens"], 1)
    for place, tool in enumerate(body.get("tools") or ()):
        tool.update(name=f"f{place}", strict=None)
    if body.get("tool_choice") not in ("none", "auto", None):
        body["tool_choice"] = "auto"
    if isinstance(body["input"], list):
        call = {"type": "function_call", "call_id": "c", "name": "f0", "arguments": "{}"}
        items = [item for item in body["input"] if item.get("type") != "reasoning"]
        for item in items:
            if "call_id" in item:
                item["call_id"] = "c"
            if "arguments" in item:
                item["arguments"] = "{}"
        body["input"] = [call, *items]
    if body.get("logit_bias"):
        body["logit_bias"] = {str(int(name) % VOCAB_SIZE): bias for name, bias in body["logit_bias"].items()}
    return body


def with_known_functions(body: JsonObject) -> None:
    """Change a body so that its tools have different names, and its calls, results and choices name existing ones."""
    body.pop("reasoning_effort", None)  # the chat template has no such option
    for place, tool in enumerate(body.get("tools") or ()):
        tool["function"] = {**tool["function"], "name": f"f{place}", "strict": None}
    if body.get("tool_choice") not in ("none", "auto", None):
        body["tool_choice"] = "auto"
    for message in body.get("messages") or ():
        if isinstance(message, dict):
            message.pop("tool_call_id", None)
            for call in message.get("tool_calls") or ():
                call["function"]["arguments"] = "{}"


def consistent_messages(body: JsonObject) -> JsonObject:
    """Return a body of Anthropic's API with a short output, whose roles, tools and calls fit each other."""
    body = {name: value for name, value in body.items() if name not in ("output_config", "thinking")}
    body["model"] = MODEL_NAME
    if "max_tokens" in body:
        body |= {"max_tokens": MAX_TOKENS, "min_tokens": 1}
    for place, tool in enumerate(body.get("tools") or ()):
        tool |= {"name": f"f{place}", "strict": False}
    choice = body.get("tool_choice")
    if choice is not None and choice["type"] != "none":
        body["tool_choice"] = {"type": "auto"}
    for message in body["messages"]:
        if not isinstance(message["content"], str):
            message["content"] = [block for block in message["content"] if block["type"] == "text"]
    body["messages"].append({"role": "user", "content": "Go on."})
    return body
