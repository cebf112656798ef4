"""The messages of the last release, from its protos, in a descriptor pool of their own."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.descriptor import Descriptor, EnumDescriptor, MethodDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

ROOT = Path(__file__).with_name("last_release")
UNKNOWN_FIELD = b"\xf8\xff\xff\xff\x0f\x01"  # 1 as the field with the largest number, which no message has


@dataclass(frozen=True, slots=True)
class LastRelease:
    """The descriptors of the last release."""

    files: FileDescriptorSet
    pool: DescriptorPool

    @classmethod
    def load(cls, directory: Path) -> "LastRelease":
        """Compile the protos, with a temporary file in a directory."""
        out, sources = directory / "protos.binpb", sorted((ROOT / "baton" / "protos").glob("*.proto"))
        argv = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{ROOT}",
            f"--descriptor_set_out={out}",
            *map(str, sources),
        ]
        subprocess.run(argv, check=True)
        files, pool = FileDescriptorSet.FromString(out.read_bytes()), DescriptorPool()
        pending = {file.name: file for file in files.file}
        while pending:  # dependencies first
            name = next(name for name, file in pending.items() if not pending.keys() & set(file.dependency))
            pool.Add(pending.pop(name))
        return cls(files, pool)

    def enums(self) -> list[EnumDescriptor]:
        """Return all top-level enums."""
        return [
            self.pool.FindEnumTypeByName(f"{file.package}.{enum.name}")
            for file in self.files.file
            for enum in file.enum_type
        ]

    def messages(self) -> list[Descriptor]:
        """Return all top-level messages."""
        return [
            self.pool.FindMessageTypeByName(f"{file.package}.{message.name}")
            for file in self.files.file
            for message in file.message_type
        ]

    def methods(self) -> dict[str, MethodDescriptor]:
        """Return the methods of all services by their path in gRPC."""
        services = [
            self.pool.FindServiceByName(f"{file.package}.{service.name}")
            for file in self.files.file
            for service in file.service
        ]
        return {f"/{each.full_name}/{method.name}": method for each in services for method in each.methods}


def as_known_to(descriptor: Descriptor, content: bytes) -> Message:
    """Return a message as a program that knows only this descriptor understands it."""
    message: Message = GetMessageClass(descriptor)()
    message.ParseFromString(content)
    message.DiscardUnknownFields()
    return message
