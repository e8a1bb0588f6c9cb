"""Bytes that the Go runtime has produced or accepted."""

import pytest

from bayplan._proto.nri import api_pb2
from bayplan.nri.wire import Code, Connection, Role, TtrpcRequest, TtrpcResponse

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"

REGISTER = (
    bytes.fromhex("00000002 00000045 0000003b 00000001 01 00 0a1c")
    + RUNTIME_SERVICE.encode()
    + bytes.fromhex("120e")
    + b"RegisterPlugin"
    + bytes.fromhex("1a0b 0a05")
    + b"probe"
    + bytes.fromhex("1202")
    + b"10"
)
REGISTER_OK = bytes.fromhex("00000002 0000000a 00000000 00000001 02 00")
CONFIGURE_PAYLOAD = api_pb2.ConfigureRequest(
    runtime_name="containerd",
    runtime_version="v2.2.7-test-123",
    registration_timeout=5000,
    request_timeout=2000,
).SerializeToString()
CONFIGURE = (
    bytes.fromhex("00000001 0000005d 00000053 00000001 01 00 0a1b")
    + PLUGIN_SERVICE.encode()
    + bytes.fromhex("1209")
    + b"Configure"
    + bytes.fromhex("1a")
    + bytes((len(CONFIGURE_PAYLOAD),))
    + CONFIGURE_PAYLOAD
    + bytes.fromhex("20 80a8d6b907")
)
CONFIGURE_OK = bytes.fromhex("00000001 0000000f 00000005 00000001 02 00 12 03 10 ff0f")
UNIMPLEMENTED = bytes.fromhex("00000001 00000014 0000000a 00000005 02 00 0a08 080c 1204") + b"nope"


@pytest.fixture
def runtime():
    return Connection(Role.RUNTIME)


def test_register_is_one_frame_on_connection_2(plugin, runtime, deliver):
    payload = api_pb2.RegisterPluginRequest(plugin_name="probe", plugin_idx="10").SerializeToString()
    call = plugin.request(RUNTIME_SERVICE, "RegisterPlugin", payload)
    assert plugin.send(call) == REGISTER
    assert deliver(runtime, REGISTER) == [TtrpcRequest(1, RUNTIME_SERVICE, "RegisterPlugin", payload)]


def test_success_without_payload_is_a_message_of_zero_bytes(plugin, runtime, deliver):
    plugin.send(plugin.request(RUNTIME_SERVICE, "RegisterPlugin", b""))
    deliver(runtime, REGISTER)
    assert runtime.send(TtrpcResponse(1)) == REGISTER_OK
    assert deliver(plugin, REGISTER_OK) == [TtrpcResponse(1)]


def test_configure_carries_the_time_left(plugin, runtime, deliver):
    assert len(CONFIGURE_PAYLOAD) == 35
    call = runtime.request(PLUGIN_SERVICE, "Configure", CONFIGURE_PAYLOAD, timeout_ns=2_000_000_000)
    assert runtime.send(call) == CONFIGURE
    assert deliver(plugin, CONFIGURE) == [
        TtrpcRequest(1, PLUGIN_SERVICE, "Configure", CONFIGURE_PAYLOAD, timeout_ns=2_000_000_000)
    ]


def test_configure_reply_with_every_event_of_old_runtimes(plugin, deliver):
    deliver(plugin, CONFIGURE)
    payload = api_pb2.ConfigureResponse(events=0x7FF).SerializeToString()
    assert plugin.send(TtrpcResponse(1, payload=payload)) == CONFIGURE_OK


def test_an_error_reply_is_a_status_without_payload(plugin, runtime, deliver):
    for _ in range(3):
        deliver(plugin, runtime.send(runtime.request(PLUGIN_SERVICE, "Nope", b"")))
    assert plugin.send(TtrpcResponse(5, Code.UNIMPLEMENTED, "nope")) == UNIMPLEMENTED
    assert deliver(runtime, UNIMPLEMENTED) == [TtrpcResponse(5, Code.UNIMPLEMENTED, "nope")]
