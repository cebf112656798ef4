"""A panic in a library's Rust code fails one request and nothing else."""

import json
import shutil
from collections.abc import Iterator, Sequence

import grpc
import pytest

from baton.engine.errors import InvalidRequest
from baton.protos import common_pb2
from baton.protos.router_pb2 import GenerateRequest
from baton.protos.router_pb2_grpc import InferenceStub
from baton.router.errors import INPUT_PANICS, OUTPUT_PANICS, is_panic
from baton.router.text.tokenizer import Tokenizer
from baton.rpc.status import Internal
from tests.unit.router.http.test_post_protocol import connected, request
from tests.unit.router.rigs.running_router import MODEL, RunningRouter, running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker
from tests.unit.router.tokenizer_variants import make_tokenizer, split_by

BREAKING = "x" * 40  # the pattern tries every way to share these out before it gives up, and the library panics
COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose tokenizer panics on some texts."""
    directory = tmp_path_factory.mktemp("models") / "bundled_model"
    shutil.copytree(MODEL, directory)
    make_tokenizer(pre_tokenizer=split_by("(x+x+)+y")).save(str(directory / "tokenizer.json"))
    return str(directory)


@pytest.fixture(scope="module")
def panic(model: str) -> BaseException:
    """Return a panic raised by the library."""
    backend = make_tokenizer(pre_tokenizer=split_by("(x+x+)+y"))
    try:
        backend.encode(BREAKING)
    except BaseException as error:
        return error
    raise AssertionError("the tokenizer took it")


@pytest.fixture
def tokenizer(model: str) -> Iterator[Tokenizer]:
    tokenizer = Tokenizer(model)
    yield tokenizer
    tokenizer.close()


def test_a_panic_is_distinguished_from_other_errors(panic: BaseException) -> None:
    assert not isinstance(panic, Exception)
    assert is_panic(panic)
    with pytest.raises(InvalidRequest, match="tokenizer failed on"), INPUT_PANICS:
        raise panic
    for other in (KeyboardInterrupt(), GeneratorExit(), ValueError()):
        assert not is_panic(other)
        with pytest.raises(type(other)), OUTPUT_PANICS:
            raise other


async def test_every_use_of_the_tokenizer_converts_panics(tokenizer: Tokenizer) -> None:
    for text in (BREAKING, BREAKING + "z" * (1 << 16)):
        for add_special_tokens in (False, True):
            with pytest.raises(InvalidRequest, match="tokenizer failed on"):
                await tokenizer.encode(text, add_special_tokens)
    assert await tokenizer.encode("hello", add_special_tokens=False)


async def test_a_panic_fails_only_its_own_request(model: str) -> None:
    worker = ScriptedWorker()
    async with running_router(worker, model=model) as router, connected(router) as connection:
        for prompt, status in ((BREAKING, 400), ("hello", 200), ([BREAKING, "hello"], 400), ("hello", 200)):
            asked = request(json.dumps({"prompt": prompt, "max_tokens": 2}).encode())
            connection.writer.write(asked.replace(b"/v1/chat/completions", COMPLETIONS.encode()))
            answered, headers, text = await connection.answer()
            assert answered == status, text
            assert "connection" not in headers
        for path, fields in (
            ("/tokenize", {"prompt": BREAKING}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": BREAKING}]}),
            (COMPLETIONS, {"prompt": BREAKING, "stream": True}),
        ):
            answer = await router.http.post(path, json=fields)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["type"] == "invalid_request_error"
            assert "tokenizer failed on this text" in answer.json()["error"]["message"]
        assert await code_over_grpc(router, BREAKING) is grpc.StatusCode.INVALID_ARGUMENT
        assert await code_over_grpc(router, "hello") is grpc.StatusCode.OK
        assert (await router.http.get("/workers")).json()["router"]["inflight"] == 0


async def code_over_grpc(router: RunningRouter, text: str) -> grpc.StatusCode:
    async with grpc.aio.insecure_channel(router.grpc_address) as channel:
        call = InferenceStub(channel).Generate(
            GenerateRequest(text=text, sampling=common_pb2.SamplingParams(max_tokens=2))
        )
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
        return await call.code()


class BreakingDetokenizer:
    """Fails after this many tokens."""

    def __init__(self, panic: BaseException, num_tokens: int) -> None:
        self._panic = panic
        self._num_left = num_tokens

    def push(self, token_id: int) -> str:
        """Return a letter for the token."""
        self._num_left -= 1
        if self._num_left < 0:
            raise self._panic
        return "a"

    def push_all(self, token_ids: Sequence[int]) -> str:
        """Return a letter for each token."""
        return "".join(map(self.push, token_ids))

    def flush(self) -> str:
        """Return no text."""
        return ""


@pytest.mark.parametrize("extra", [{}, {"n": 3}, {"stop": ["no"]}])
async def test_output_that_cannot_be_encoded_fails_only_its_request(
    monkeypatch: pytest.MonkeyPatch, panic: BaseException, extra: dict[str, object]
) -> None:
    async with running_router(ScriptedWorker()) as router:
        with monkeypatch.context() as patch:
            patch.setattr(Tokenizer, "detokenizer", lambda *_: BreakingDetokenizer(panic, 2))
            body = {"prompt": "hello", "max_tokens": 5, **extra}
            whole = await router.http.post(COMPLETIONS, json=body)
            assert whole.status_code == 500
            assert "failed on the generated tokens" in whole.json()["error"]["message"]
            streamed = await router.http.post(COMPLETIONS, json={**body, "stream": True})
            assert streamed.status_code == 200
            last = json.loads(streamed.text.strip().rpartition("\n\n")[2].removeprefix("data: "))
            assert "failed on the generated tokens" in last["error"]["message"]
            assert await code_over_grpc(router, "hello") is grpc.StatusCode.OK  # of two tokens
        assert (await router.http.post(COMPLETIONS, json=body)).status_code == 200
        assert (await router.http.get("/workers")).json()["router"]["inflight"] == 0


async def test_a_panic_of_any_library_is_a_500(monkeypatch: pytest.MonkeyPatch, panic: BaseException) -> None:
    async with running_router(ScriptedWorker()) as router:
        with monkeypatch.context() as patch:

            def breaks(*_: object) -> None:
                raise panic

            patch.setattr("baton.router.http.body_reader.read_body", breaks)
            patch.setattr("baton.router.grpc.server.sampling_from_proto", breaks)
            answer = await router.http.post(COMPLETIONS, json={"prompt": "hello"})
            assert answer.status_code == 500
            assert answer.json()["error"]["type"] == "internal_server_error"
            assert await code_over_grpc(router, "hello") is grpc.StatusCode.INTERNAL
        assert (await router.http.post(COMPLETIONS, json={"prompt": "hello", "max_tokens": 1})).status_code == 200


async def test_error_messages_do_not_repeat_the_text(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await tokenizer.encode(BREAKING, add_special_tokens=False)
    assert caught.value.__suppress_context__
    with pytest.raises(Internal), OUTPUT_PANICS:
        raise type("PanicException", (BaseException,), {})(BREAKING)
