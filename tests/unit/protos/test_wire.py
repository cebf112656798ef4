"""Messages of this release and of the last one understand each other."""

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

import baton.protos.doctor_pb2
import baton.protos.group_pb2
import baton.protos.router_pb2
import baton.protos.worker_pb2  # noqa: F401  # all of them are in the default pool now
from tests.unit.protos.last_release import UNKNOWN_FIELD, LastRelease, as_known_to

MAX_DEPTH = 6
VALUES = {
    FieldDescriptor.CPPTYPE_INT32: -3,
    FieldDescriptor.CPPTYPE_INT64: -4,
    FieldDescriptor.CPPTYPE_UINT32: 5,
    FieldDescriptor.CPPTYPE_UINT64: 1 << 60,
    FieldDescriptor.CPPTYPE_DOUBLE: 0.25,
    FieldDescriptor.CPPTYPE_FLOAT: 0.5,
    FieldDescriptor.CPPTYPE_BOOL: True,
    FieldDescriptor.CPPTYPE_STRING: "text",
}


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> LastRelease:
    return LastRelease.load(tmp_path_factory.mktemp("protos"))


def now(descriptor: Descriptor) -> Descriptor:
    """Return this release's message of the same name."""
    return Default().FindMessageTypeByName(descriptor.full_name)


def all_messages(descriptors: list[Descriptor]) -> Iterator[Descriptor]:
    for each in descriptors:
        yield each
        yield from all_messages(list(each.nested_types))


def fill(message: Message, depth: int = 0) -> Message:
    """Set every field of a message, of each oneof the last, with repeated fields twice."""
    for field in message.DESCRIPTOR.fields:
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            if depth == MAX_DEPTH:
                continue
            entry = field.message_type
            if entry.GetOptions().map_entry:
                fill_map(getattr(message, field.name), entry, depth)
            elif field.is_repeated:
                for _ in range(2):
                    fill(getattr(message, field.name).add(), depth + 1)
            else:
                getattr(message, field.name).SetInParent()
                fill(getattr(message, field.name), depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).extend([value_of(field)] * 2)
        else:
            setattr(message, field.name, value_of(field))
    return message


def fill_map(entries: object, entry: Descriptor, depth: int) -> None:
    key, value = value_of(entry.fields_by_name["key"]), entry.fields_by_name["value"]
    if value.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        fill(entries[key], depth + 1)  # type: ignore[index]  # protobuf's container
    else:
        entries[key] = value_of(value)  # type: ignore[index]


def value_of(field: FieldDescriptor) -> object:
    """Return a value of a field that is not its default."""
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b"bytes"
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return field.enum_type.values[-1].number
    return VALUES[field.cpp_type]


def test_no_field_was_removed_or_has_another_meaning(last: LastRelease) -> None:
    wrong = []
    for message in all_messages(last.messages()):
        current = now(message)
        described = DescriptorProto()
        current.CopyToProto(described)
        reserved = {number for each in described.reserved_range for number in range(each.start, each.end)}
        for field in message.fields:
            found = current.fields_by_number.get(field.number)
            if found is None:
                wrong += [] if field.number in reserved else [f"{field.full_name} was removed and not reserved"]
            elif (found.name, found.type, found.is_repeated) != (field.name, field.type, field.is_repeated):
                wrong.append(f"{field.full_name} has become {found.full_name}, or another type")
            elif field.message_type is not None and found.message_type.full_name != field.message_type.full_name:
                wrong.append(f"{field.full_name} has another message")
    assert wrong == []


def test_no_value_of_an_enum_was_removed_or_has_another_number(last: LastRelease) -> None:
    for enum in last.enums():
        current = Default().FindEnumTypeByName(enum.full_name).values_by_number
        assert {number: value.name for number, value in enum.values_by_number.items()}.items() <= {
            number: value.name for number, value in current.items()
        }.items(), enum.full_name


def test_no_method_was_removed_or_has_other_messages(last: LastRelease) -> None:
    for method in last.methods().values():
        service = Default().FindServiceByName(method.containing_service.full_name)
        current = service.methods_by_name[method.name]
        for one, other in ((method.input_type, current.input_type), (method.output_type, current.output_type)):
            assert one.full_name == other.full_name
        assert (method.client_streaming, method.server_streaming) == (
            current.client_streaming,
            current.server_streaming,
        )


def test_this_release_reads_all_that_the_last_one_writes(last: LastRelease) -> None:
    for descriptor in last.messages():
        written = fill(GetMessageClass(descriptor)())
        read = GetMessageClass(now(descriptor))()
        read.ParseFromString(written.SerializeToString())
        for field, value in written.ListFields():
            assert str(getattr(read, field.name)) == str(value), field.full_name
        assert not has_unknown(read), descriptor.full_name


def has_unknown(message: Message) -> bool:
    before = message.ByteSize()
    message.DiscardUnknownFields()
    return message.ByteSize() != before


def test_the_last_release_reads_what_it_knows_of_this_ones_messages(last: LastRelease) -> None:
    for descriptor in last.messages():
        written = fill(GetMessageClass(now(descriptor))())
        content = written.SerializeToString() + UNKNOWN_FIELD  # also right after a release, when the protos are equal
        assert as_known_to(descriptor, content).ByteSize() < len(content)
        read = GetMessageClass(descriptor)()
        read.ParseFromString(content)  # fields that it does not know are no error
        for field, value in read.ListFields():
            if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE and field.containing_oneof is None:
                assert str(getattr(written, field.name)) == str(value), field.full_name
