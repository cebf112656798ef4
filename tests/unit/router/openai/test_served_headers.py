"""Response headers that name the workers."""

from urllib.parse import unquote

import pytest

from baton.protos import common_pb2, worker_pb2
from baton.router.openai.response import served_headers
from tests.unit.router.rigs.running_router import running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

ODD = ("décode 0", "a\r\nx-injected: 1", "\x00\x7f", "работник", "é" * 5000, "100% sure", "a b")
BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


class OddWorker(ScriptedWorker):
    """A worker that reports that workers with invalid names served a request; its own name is valid."""

    said = ""

    def _served_by(self, command: worker_pb2.GenerateCommand) -> common_pb2.ServedBy:
        return common_pb2.ServedBy(decode_worker=self.said, prefill_worker=self.said, kv_transport=self.said)


@pytest.mark.parametrize("name", ODD)
async def test_any_worker_name_becomes_a_valid_header(name: str) -> None:
    worker = OddWorker()
    worker.said = name
    async with running_router(worker) as router:
        for stream in (False, True):
            for headers in ({}, {"expect": "100-continue"}):  # answered on the connection itself, and over ASGI
                body = {**BODY, "stream": stream}
                answer = await router.http.post("/v1/chat/completions", json=body, headers=headers)
                assert answer.status_code == 200
                for what in ("prefill", "decode", "kv-transport"):
                    assert unquote(answer.headers[f"x-baton-{what}"]) == name[:128]
                assert "x-injected" not in answer.headers


def test_valid_names_are_unchanged() -> None:
    told = common_pb2.ServedBy(decode_worker="decode-0/a%20b", prefill_worker="", kv_transport="tcp")
    headers = served_headers(told)
    assert headers["x-baton-decode"] == "decode-0/a%20b"
    assert headers["x-baton-prefill"] == ""
    assert headers["x-baton-kv-transport"] == "tcp"
    assert "x-baton-mixed-quantization" not in headers
    told.mixed_quantization = "gptq,awq->bf16\r\nx: y"
    assert served_headers(told)["x-baton-mixed-quantization"] == "gptq,awq->bf16%0D%0Ax%3A%20y"


class MixedWorker(ScriptedWorker):
    """A worker whose second completion of a request has KV of another quantization."""

    def _served_by(self, command: worker_pb2.GenerateCommand) -> common_pb2.ServedBy:
        is_second = command.request_id.split("-")[-2] == "1"  # ends with the numbers of completion and attempt
        return common_pb2.ServedBy(decode_worker="d", mixed_quantization="gptq->bf16" if is_second else "")


async def test_a_response_names_the_mixed_quantization_of_any_completion() -> None:
    async with running_router(MixedWorker()) as router:
        for n, expected in ((1, None), (2, "gptq->bf16")):
            answer = await router.http.post("/v1/chat/completions", json={**BODY, "n": n})
            assert answer.headers.get("x-baton-mixed-quantization") == expected
