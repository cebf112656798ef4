"""gRPC server reflection: clients such as grpcurl list and call the services without their .proto files."""

from collections.abc import Sequence
from functools import cache

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer  # `reflection.aio` is this module, untyped

V1_SERVICE = "grpc.reflection.v1.ServerReflection"


def enable_reflection(server: grpc.aio.Server, names: Sequence[str]) -> None:
    """Serve the descriptions of these services by reflection v1 and v1alpha, which have the same messages."""
    _describe_v1()
    every_name = [*names, reflection.SERVICE_NAME, V1_SERVICE]
    reflection.enable_server_reflection(every_name, server)
    handler = grpc.stream_stream_rpc_method_handler(
        ReflectionServicer(every_name).ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handlers = grpc.method_handlers_generic_handler(V1_SERVICE, {"ServerReflectionInfo": handler})
    server.add_generic_rpc_handlers((handlers,))


@cache
def _describe_v1() -> None:
    """Register the description of v1, which grpcio-reflection lacks: v1alpha's, renamed."""
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.ClearField("options")
    text = text_format.MessageToString(file)
    v1 = text_format.Parse(text.replace("v1alpha", "v1"), descriptor_pb2.FileDescriptorProto())
    descriptor_pool.Default().AddSerializedFile(v1.SerializeToString())
