"""The envelopes of ttRPC as the protobuf library reads and writes them, to compare the codec with.

The fields are those of request.proto in containerd/ttrpc.
"""

from typing import Any, Final

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory, text_format

_FILE: Final = f"""
name: "support/ttrpc.proto" package: "ttrpc" syntax: "proto3" dependency: "{any_pb2.DESCRIPTOR.name}"
message_type {{
  name: "Request"
  field {{ name: "service" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }}
  field {{ name: "method" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }}
  field {{ name: "payload" number: 3 type: TYPE_BYTES label: LABEL_OPTIONAL }}
  field {{ name: "timeout_nano" number: 4 type: TYPE_INT64 label: LABEL_OPTIONAL }}
  field {{ name: "metadata" number: 5 type: TYPE_MESSAGE type_name: ".ttrpc.KeyValue" label: LABEL_REPEATED }}
}}
message_type {{
  name: "Response"
  field {{ name: "status" number: 1 type: TYPE_MESSAGE type_name: ".ttrpc.Status" label: LABEL_OPTIONAL }}
  field {{ name: "payload" number: 2 type: TYPE_BYTES label: LABEL_OPTIONAL }}
}}
message_type {{
  name: "Status"
  field {{ name: "code" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }}
  field {{ name: "message" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }}
  field {{
    name: "details" number: 3 type: TYPE_MESSAGE type_name: ".google.protobuf.Any" label: LABEL_REPEATED
  }}
}}
message_type {{
  name: "KeyValue"
  field {{ name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }}
  field {{ name: "value" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }}
}}
"""

_POOL: Final = descriptor_pool.Default()
_POOL.AddSerializedFile(text_format.Parse(_FILE, descriptor_pb2.FileDescriptorProto()).SerializeToString())


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"ttrpc.{name}"))


Request: Final = _message("Request")
Response: Final = _message("Response")
Status: Final = _message("Status")
KeyValue: Final = _message("KeyValue")
