"""Serves the provider to Terraform: the handshake of go-plugin on standard output, then gRPC on a socket.

The framework's own runner stores a key in the home directory, which must be writable, and aborts calls when it is
stopped. This server makes a new key for each process and finishes its calls. Only the user can reach the socket, since
its folder has mode 0700. The server does not verify Terraform's certificate, because gRPC's TLS does not support its
curve (P-521).
"""

import base64
import os
import signal
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tf.gen import grpc_controller_pb2 as controller
from tf.gen import grpc_controller_pb2_grpc as controller_rpc
from tf.gen import grpc_stdio_pb2_grpc as stdio_rpc
from tf.gen import tfplugin_pb2_grpc as rpc

from orb_provider.adapter import OrbProvider
from orb_provider.protocol import OrbServicer

COOKIE: Final = ("TF_PLUGIN_MAGIC_COOKIE", "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2")
"""The environment variable, and its value, by which Terraform shows that it started this process."""

THREADS: Final = 10
GRACE_S: Final = 30.0
_DAYS: Final = 30
_LOOK_S: Final = 1.0


def main() -> int:
    """Serve the provider until Terraform requests a shutdown or has died.

    Return the exit code, 1 if Terraform did not start it.
    """
    parent = os.getppid()
    if os.environ.get(COOKIE[0]) != COOKIE[1]:
        print("orb: this is a plugin that Terraform starts: see docs/terraform.md.", file=sys.stderr)
        return 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; Terraform ends the plugin
    ended = threading.Event()
    # Terraform has a bound of its own; gRPC's of 4 MiB is less than a state may have.
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(THREADS), options=options)
    rpc.add_ProviderServicer_to_server(OrbServicer(OrbProvider()), server)
    controller_rpc.add_GRPCControllerServicer_to_server(_Controller(ended), server)
    stdio_rpc.add_GRPCStdioServicer_to_server(_Stdio(), server)
    with tempfile.TemporaryDirectory(prefix="orb-") as folder:
        certificate, credentials = _identity()
        socket = f"{folder}/plugin.sock"
        server.add_secure_port(f"unix://{socket}", credentials)
        server.start()
        shown = base64.b64encode(certificate).decode().rstrip("=")
        print(f"1|6|unix|{socket}|grpc|{shown}", flush=True)
        while not ended.wait(_LOOK_S) and os.getppid() == parent:
            pass
        server.stop(GRACE_S).wait()
    return 0


class _Controller(controller_rpc.GRPCControllerServicer):
    """The gRPC service by which Terraform requests a shutdown. It sets `ended`, for which `main` waits."""

    def __init__(self, ended: threading.Event) -> None:
        self._ended = ended

    def Shutdown(self, request: Any, context: Any) -> controller.Empty:
        self._ended.set()
        return controller.Empty()


class _Stdio(stdio_rpc.GRPCStdioServicer):
    """The gRPC service of go-plugin that could send the process's output. It sends nothing.

    Terraform reads the output directly.
    """

    def StreamStdio(self, request: Any, context: Any) -> Any:
        return iter(())


def _identity() -> tuple[bytes, grpc.ServerCredentials]:
    """Return a new certificate (DER), and credentials with which the gRPC server presents the certificate.

    The handshake sends the certificate to Terraform, which accepts no other.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.DER), grpc.ssl_server_credentials([(secret, pem)])
