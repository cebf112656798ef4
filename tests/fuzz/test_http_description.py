"""A router with a real worker keeps to its /openapi.json: in what it accepts and refuses, and in its responses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
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

from tests.fuzz.fuzzing import Fuzzing
from tests.fuzz.router_rig import MODEL_NAME, RouterRig
from tests.fuzz.test_http_api import is_possible
from tests.integration.router_process import MODEL, RouterProcess, router_process, wait_workers
from tests.integration.worker_process import worker_process

TIMEOUT_S = 20.0
MAX_TOKENS = 3
VOCAB_SIZE = 4096
CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance, negative_data_rejection, positive_data_acceptance,
]  # fmt: skip
GENERATING = ("/v1/chat/completions", "/v1/completions")
JsonObject = dict[str, Any]


class RealWorkerRig(RouterRig):
    """A router with one real worker, which prefills and decodes."""

    async def _start(self, directory: Path) -> RouterProcess:
        worker = await self._stack.enter_async_context(worker_process("decode", MODEL, directory, "--log-level=error"))
        flags = ("--port=0", "--grpc-port=0", f"--workers={worker.address}", "--max-choices=3")
        router = await self._stack.enter_async_context(router_process(directory, *flags))
        async with router.client() as client:
            await wait_workers(client, 1)
        return router


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterRig]:
    """A router with a real worker."""
    rig = RealWorkerRig(tmp_path_factory.mktemp("real"))
    yield rig
    rig.close()


def test_the_server_keeps_to_its_description(fuzzing: Fuzzing, real: RouterRig) -> None:
    schema = schemathesis.openapi.from_url(f"{real.router.url}/openapi.json")
    num_accepted = 0

    def check(case: Case) -> None:
        nonlocal num_accepted
        if case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE and case.path in GENERATING:
            case.body = consistent(case.body)
        response = case.call_and_validate(timeout=TIMEOUT_S, checks=CHECKS)
        num_accepted += response.status_code == 200 and case.method == "POST"

    operations = [operation.ok() for operation in schema.get_all_operations()]
    inputs = [each.as_strategy(generation_mode=mode) for each in operations for mode in GenerationMode]
    fuzzing.run_all([(each, check) for each in filter(is_possible, inputs)], 25)
    assert num_accepted > 50
    real.check_serves()


def consistent(body: JsonObject) -> JsonObject:
    """A valid body with a short output, in which the fields keep the rules that JSON Schema has no words for."""
    body = {**body, "model": MODEL_NAME}
    if body.get("max_tokens") != 0:
        body["max_tokens"] = MAX_TOKENS
    for name, bound in (("max_completion_tokens", MAX_TOKENS), ("min_tokens", 1), ("best_of", 1)):
        if body.get(name) is not None:
            body[name] = min(body[name], bound)
    if isinstance(body.get("prompt"), list):
        body["n"] = 1
    if body.get("logit_bias"):
        body["logit_bias"] = {str(int(name) % VOCAB_SIZE): bias for name, bias in body["logit_bias"].items()}
    return body
