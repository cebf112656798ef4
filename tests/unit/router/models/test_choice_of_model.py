"""Each API serves the model that a request names."""

from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from baton.protos import common_pb2
from baton.protos.open_inference_pb2 import ModelInferRequest, RepositoryIndexRequest
from baton.protos.open_inference_pb2_grpc import GRPCInferenceServiceStub
from baton.protos.router_pb2 import GenerateRequest
from baton.protos.router_pb2_grpc import InferenceStub
from tests.unit.router.models.two_models import FIRST, MARK, MARK_ID, OTHER, other_worker, two_models
from tests.unit.router.rigs.running_router import running_router, worker_states
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 3},
    "/v1/completions": {"prompt": "hi", "max_tokens": 3},
    "/v1/responses": {"input": "hi", "max_output_tokens": 3},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 3},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/embeddings": {"input": "hi"},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [300]},
}
GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


def message_of(answer: httpx.Response) -> str:
    """Return the text of an error in any API's shape."""
    error = answer.json()["error"]
    return str(error if isinstance(error, str) else error["message"])


async def test_all_models_are_listed(tmp_path: Path) -> None:
    async with two_models(tmp_path) as router:
        models = [model async for model in router.openai.models.list()]
        assert [model.id for model in models] == [FIRST, OTHER]
        assert (await router.openai.models.retrieve(OTHER)).model_dump()["max_model_len"] == 128
        assert (await router.http.get("/v1/models/nothing")).status_code == 404


@pytest.mark.parametrize("path", GENERATING)
async def test_a_request_goes_to_a_worker_of_its_model(path: str, tmp_path: Path) -> None:
    first, other = ScriptedWorker(), other_worker()
    async with two_models(tmp_path, first, other) as router:
        for model, worker in ((FIRST, first), (OTHER, other)):
            answer = await router.http.post(path, json={**BODIES[path], "model": model})
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == model
            assert answer.headers["x-baton-decode"] == worker.worker_id
        assert (len(first.commands), len(other.commands)) == (1, 1)


async def test_a_model_has_its_own_tokenizer(tmp_path: Path) -> None:
    async with two_models(tmp_path) as router:
        for model, count in ((FIRST, None), (OTHER, 1)):
            answer = await router.http.post("/tokenize", json={"model": model, "prompt": MARK})
            tokens = answer.json()["tokens"]
            assert tokens == [MARK_ID] if count else MARK_ID not in tokens
        body = {"tokens": [MARK_ID]}
        assert (await router.http.post("/detokenize", json={**body, "model": OTHER})).json() == {"prompt": MARK}
        answer = await router.http.post("/detokenize", json={**body, "model": FIRST})
        assert (answer.status_code, message_of(answer)) == (400, f"tokens has an id outside 0 to {MARK_ID - 1}")


async def test_a_model_has_its_own_context(tmp_path: Path) -> None:
    async with two_models(tmp_path) as router:
        body = {"prompt": [300] * 200, "max_tokens": 2}
        assert (await router.http.post("/v1/completions", json={**body, "model": FIRST})).status_code == 200
        answer = await router.http.post("/v1/completions", json={**body, "model": OTHER})
        assert answer.status_code == 400
        assert "maximum context length is 128 tokens" in message_of(answer)


@pytest.mark.parametrize("path", BODIES)
async def test_a_request_has_to_name_one_of_several_models(path: str, tmp_path: Path) -> None:
    async with two_models(tmp_path) as router:
        answer = await router.http.post(path, json=BODIES[path])
        assert answer.status_code == 400
        assert message_of(answer) == f"model is required: this server has `{FIRST}`, `{OTHER}`."
        answer = await router.http.post(path, json={**BODIES[path], "model": "nothing"})
        assert answer.status_code == 404
        assert message_of(answer) == f"The model `nothing` does not exist; this server has `{FIRST}`, `{OTHER}`."


async def test_errors_have_each_apis_shape(tmp_path: Path) -> None:
    async with two_models(tmp_path) as router:
        error = (await router.http.post("/v1/completions", json=BODIES["/v1/completions"])).json()["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", "model")
        error = (await router.http.post("/v1/messages", json=BODIES["/v1/messages"])).json()["error"]
        assert error["type"] == "invalid_request_error"
        wrong = {**BODIES["/v1/completions"], "model": "nothing"}
        assert (await router.http.post("/v1/completions", json=wrong)).json()["error"]["code"] == "model_not_found"


async def test_a_stored_response_can_continue_with_another_model(tmp_path: Path) -> None:
    async with two_models(tmp_path) as router:
        first = await router.openai.responses.create(model=FIRST, input="hi", max_output_tokens=3)
        second = await router.openai.responses.create(
            model=OTHER, input="and?", max_output_tokens=3, previous_response_id=first.id
        )
        assert (first.model, second.model) == (FIRST, OTHER)


async def test_kserve_over_http_has_a_path_for_each_model(tmp_path: Path) -> None:
    async with two_models(tmp_path) as router:
        body: dict[str, Any] = {"text_input": "hi", "parameters": {"max_tokens": 3, "temperature": 0}}
        texts = {}
        for model in (FIRST, OTHER):
            answer = await router.http.post(f"/v2/models/{model}/generate", json=body)
            assert answer.json()["model_name"] == model
            texts[model] = answer.json()["text_output"]
            assert (await router.http.get(f"/v2/models/{model}")).json()["name"] == model
            assert (await router.http.get(f"/v2/models/{model}/ready")).status_code == 200
        assert texts[FIRST] != texts[OTHER]
        index = (await router.http.post("/v2/repository/index")).json()
        assert [each["name"] for each in index] == [FIRST, OTHER]
        tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["hi"]}
        infer = f"/v2/models/{OTHER}/infer"
        answer = await router.http.post(infer, json={"inputs": [tensor]})
        assert answer.json()["model_name"] == OTHER
        answer = await router.http.post(infer, json={"inputs": [tensor], "model_name": FIRST})
        assert (answer.status_code, message_of(answer)) == (400, f"model_name is {FIRST}, but the path has {OTHER}")
        assert (await router.http.post("/v2/models/nothing/infer", json={"inputs": [tensor]})).status_code == 404


def infer_request(model: str) -> ModelInferRequest:
    request = ModelInferRequest(model_name=model)
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"hi")
    return request


async def test_both_grpc_services_choose_by_name(tmp_path: Path) -> None:
    async with two_models(tmp_path) as router, grpc.aio.insecure_channel(router.grpc_address) as channel:
        kserve, generate = GRPCInferenceServiceStub(channel), InferenceStub(channel)
        sampling = common_pb2.SamplingParams(max_tokens=2)
        for model, worker in ((FIRST, "decode-0"), (OTHER, "decode-1")):
            assert (await kserve.ModelInfer(infer_request(model))).model_name == model
            call = generate.Generate(GenerateRequest(model=model, text="hi", sampling=sampling))
            assert {each.served_by.decode_worker async for each in call} - {""} == {worker}
        index = await kserve.RepositoryIndex(RepositoryIndexRequest())
        assert [each.name for each in index.models] == [FIRST, OTHER]
        for model, code in (("", grpc.StatusCode.INVALID_ARGUMENT), ("nothing", grpc.StatusCode.NOT_FOUND)):
            with pytest.raises(grpc.aio.AioRpcError, match=f"this server has `{FIRST}`, `{OTHER}`") as failed:
                await kserve.ModelInfer(infer_request(model))
            assert failed.value.code() == code
            with pytest.raises(grpc.aio.AioRpcError, match=f"this server has `{FIRST}`, `{OTHER}`") as failed:
                [each async for each in generate.Generate(GenerateRequest(model=model, text="hi"))]
            assert failed.value.code() == code


async def test_the_description_requires_a_name_of_several(tmp_path: Path) -> None:
    async with two_models(tmp_path) as router:
        schemas = (await router.http.get("/openapi.json")).json()["components"]["schemas"]
        for name in ("ChatRequest", "CompletionRequest", "MessagesRequest", "EmbeddingRequest", "TokenizeRequest"):
            assert schemas[name]["properties"]["model"]["enum"] == [FIRST, OTHER]
            assert "model" in schemas[name]["required"]
    async with running_router(ScriptedWorker()) as router:
        schemas = (await router.http.get("/openapi.json")).json()["components"]["schemas"]
        assert "model" not in schemas["ChatRequest"]["required"]


async def test_a_worker_at_a_fixed_address_serves_its_own_model(tmp_path: Path) -> None:
    async with two_models(tmp_path, ScriptedWorker(), other_worker()) as router:
        states = await worker_states(router.http)
        assert sorted(each["model"] for each in states.values()) == [FIRST, OTHER]
        assert (await router.http.get("/ready")).json() == {"status": "ready", "registry": "connected"}
