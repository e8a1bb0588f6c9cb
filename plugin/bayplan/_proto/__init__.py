"""Code generated from proto/ by proto/generate.sh, and here what it begins with. Only the __init__ files are written
by hand.

The library has every message class made in Python modules that its C extension does without, and has them all
loaded: 25 modules, a tenth of the daemon's start. `generate` makes the same classes with the extension.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf.internal import api_implementation
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message


def generate(serialized: bytes, module: str, namespace: dict[str, Any]) -> Any:  # noqa: ANN401 - the library's, without types
    """Put the messages and enums of the *serialized* file into the *namespace* of *module*; its descriptor."""
    if api_implementation.Type() != "upb":
        from google.protobuf import descriptor_pool  # noqa: PLC0415 - where the extension lacks
        from google.protobuf.internal import builder  # noqa: PLC0415 - as above

        file = descriptor_pool.Default().AddSerializedFile(serialized)
        builder.BuildMessageAndEnumDescriptors(file, namespace)
        builder.BuildTopDescriptorsAndMessages(file, module, namespace)
        return file
    from google._upb import _message as upb  # noqa: PLC0415 - where the extension is

    file = upb.default_pool.AddSerializedFile(serialized)
    for name, enum in file.enum_types_by_name.items():
        namespace[name] = EnumTypeWrapper(enum)
        namespace |= {value.name: value.number for value in enum.values}
    namespace |= _message_classes(upb.MessageMeta, module, file.message_types_by_name)
    return file


def _message_classes(meta: type, module: str, described: Mapping[str, Any], outer: str = "") -> dict[str, type]:
    """The classes of the messages that are *described* inside of *outer*, by name."""
    return {
        name: meta(
            name,
            (Message,),
            {
                **_message_classes(meta, module, one.nested_types_by_name, f"{outer}{name}."),
                "DESCRIPTOR": one,
                "__module__": module,
                "__qualname__": f"{outer}{name}",
            },
        )
        for name, one in described.items()
    }
