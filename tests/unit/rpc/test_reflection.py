"""Reflection for clients of both versions."""

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from baton.protos import router_pb2
from baton.rpc.reflection import enable_reflection

NAME = router_pb2.DESCRIPTOR.services_by_name["Inference"].full_name
SERVICES = [f"grpc.reflection.{version}.ServerReflection" for version in ("v1", "v1alpha")]


@pytest.mark.parametrize("service", SERVICES)
async def test_services_are_listed_and_described(service: str) -> None:
    servers = [grpc.aio.server(), grpc.aio.server()]
    for server in servers:  # a process may have several
        enable_reflection(server, [NAME])
    port = servers[0].add_insecure_port("127.0.0.1:0")
    await servers[0].start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask = channel.stream_stream(
                f"/{service}/ServerReflectionInfo",
                request_serializer=ServerReflectionRequest.SerializeToString,
                response_deserializer=ServerReflectionResponse.FromString,
            )
            symbols = [NAME, *SERVICES]
            requests = [ServerReflectionRequest(file_containing_symbol=each) for each in symbols]
            [listed, *files] = [each async for each in ask([ServerReflectionRequest(list_services=""), *requests])]
        assert {each.name for each in listed.list_services_response.service} == set(symbols)
        for symbol, answer in zip(symbols, files, strict=True):
            described = map(FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto)
            assert symbol in [f"{file.package}.{each.name}" for file in described for each in file.service]
    finally:
        for server in servers:
            await server.stop(None)
