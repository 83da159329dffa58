"""Classes of protobuf messages, from a table of their fields instead of generated code."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

CHOICE: Final = "choice"
"""Name of the choice that the fields of label ``oneof`` are."""


def message_classes(
    package: str,
    messages: Mapping[str, Sequence[str]],
    enums: Mapping[str, Mapping[str, int]] | None = None,
) -> Mapping[str, Any]:
    """Return the class of each message, by the message's name.

    They are in a pool of their own, so that generated code for the same names can be in the process.

    Args:
        package: the package of all names.
        messages: message -> its fields, each as number, name, type and, optionally, label: ``repeated``,
            ``map`` (from strings to the type) or ``oneof``.
        enums: enumeration -> its names and numbers.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"galley/{package}.proto", package=package, syntax="proto3"
    )
    enums = enums or {}
    for name, values in enums.items():
        declared = file.enum_type.add(name=name)
        for value, number in values.items():
            declared.value.add(name=value, number=number)
    types = {
        **dict.fromkeys(messages, descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE),
        **dict.fromkeys(enums, descriptor_pb2.FieldDescriptorProto.TYPE_ENUM),
    }
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for line in fields:
            _declare(message, types, package, *line.split())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }


def _declare(
    message: Any,
    types: Mapping[str, int],
    package: str,
    number: str,
    name: str,
    kind: str,
    label: str = "",
) -> None:
    declared = descriptor_pb2.FieldDescriptorProto
    repeated = label in ("repeated", "map")
    field = message.field.add(name=name, number=int(number))
    field.label = declared.LABEL_REPEATED if repeated else declared.LABEL_OPTIONAL
    if label == "map":
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _declare(entry, types, package, "1", "key", "string")
        _declare(entry, types, package, "2", "value", kind)
        field.type, field.type_name = declared.TYPE_MESSAGE, entry.name
    elif kind in types:
        field.type, field.type_name = types[kind], f".{package}.{kind}"
    else:
        field.type = declared.Type.Value(f"TYPE_{kind.upper()}")
    if label == "oneof":
        if not message.oneof_decl:
            message.oneof_decl.add(name=CHOICE)
        field.oneof_index = 0
