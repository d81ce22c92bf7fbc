"""Runs in the provider's environment: starts the plugin as Terraform does, and passes calls on.

A line of standard input is a call as JSON (`id`, `call`, `fields`), a line of standard output its answer. Calls run in
threads. Values of the protocol are JSON; `{"$unknown": true}` is an unknown value, `{"$refined": true}` one of which
Terraform knows something. An answer has `error` if the plugin did not answer.
"""

import base64
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import msgpack
from google.protobuf.json_format import MessageToDict
from tf.gen import grpc_controller_pb2 as controller
from tf.gen import grpc_controller_pb2_grpc as controller_rpc
from tf.gen import tfplugin_pb2 as pb
from tf.gen import tfplugin_pb2_grpc as rpc

COOKIE = "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2"
MOVING = ("config", "prior_state", "proposed_new_state", "planned_state", "current_state")
"""Fields of requests that are values."""


def packed(value: Any) -> bytes:
    """Encode a value as Terraform does."""

    def plain(value: Any) -> Any:
        match value:
            case {"$unknown": True}:
                return msgpack.ExtType(0, b"\x00")
            case {"$refined": True}:
                return msgpack.ExtType(12, msgpack.packb({1: False}))
            case dict():
                return {key: plain(each) for key, each in value.items()}
            case list():
                return [plain(each) for each in value]
            case _:
                return value

    data: bytes = msgpack.packb(plain(value))
    return data


def unpacked(value: Any) -> Any:
    """Decode a value of an answer; an absent one is null."""
    if not value.msgpack:
        return None
    return msgpack.unpackb(value.msgpack, ext_hook=lambda code, data: {"$unknown": True}, strict_map_key=False)


def message(name: str, fields: dict[str, Any]) -> Any:
    """Return the request of a call."""
    request = getattr(pb, name).Request()
    for key, value in fields.items():
        if key in MOVING:
            getattr(request, key).msgpack = packed(value)
        elif key == "raw_state":
            request.raw_state.json = json.dumps(value).encode()
        else:
            setattr(request, key, value)
    return request


def answer(response: Any) -> dict[str, Any]:
    """Return an answer as JSON, with its values decoded."""
    shown: dict[str, Any] = MessageToDict(response, preserving_proto_field_name=True)
    for key in ("planned_state", "new_state", "upgraded_state", "state"):
        if key in response.DESCRIPTOR.fields_by_name:
            shown[key] = unpacked(getattr(response, key))
    if "imported_resources" in response.DESCRIPTOR.fields_by_name:
        shown["imported_resources"] = [unpacked(each.state) for each in response.imported_resources]
    return shown


def main() -> None:
    plugin = subprocess.Popen(
        [sys.argv[1]],
        env={**os.environ, "TF_PLUGIN_MAGIC_COOKIE": COOKIE},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert plugin.stdout is not None
    core, version, network, address, kind, certificate = plugin.stdout.readline().strip().split("|")
    assert (core, version, network, kind) == ("1", "6", "unix", "grpc")
    der = base64.b64decode(certificate + "=" * (-len(certificate) % 4))
    lines = base64.encodebytes(der).decode()
    pem = f"-----BEGIN CERTIFICATE-----\n{lines}-----END CERTIFICATE-----\n".encode()
    options = [("grpc.ssl_target_name_override", "localhost"), ("grpc.max_receive_message_length", -1)]
    channel = grpc.secure_channel(f"unix:{address}", grpc.ssl_channel_credentials(pem), options)
    provider, writing = rpc.ProviderStub(channel), threading.Lock()

    def called(line: str) -> None:
        call = json.loads(line)
        try:
            said = answer(getattr(provider, call["call"])(message(call["call"], call["fields"]), timeout=120))
        except grpc.RpcError as error:
            said = {"error": f"{error.code().name}: {error.details()}"}
        with writing:
            print(json.dumps({"id": call["id"], "answer": said}), flush=True)

    with ThreadPoolExecutor(16) as pool:
        for line in sys.stdin:
            pool.submit(called, line)
    controller_rpc.GRPCControllerStub(channel).Shutdown(controller.Empty(), timeout=10)
    sys.exit(plugin.wait(30))


if __name__ == "__main__":
    main()
