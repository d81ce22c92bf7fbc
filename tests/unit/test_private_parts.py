"""Parts of libraries that they do not promise to keep, and that we override, call or read.

A newer release that lacks one fails here by its name. The bounds in pyproject.toml keep such a release away until then.
"""

import inspect
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest
from fastapi import APIRouter, FastAPI
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from packaging.requirements import Requirement
from packaging.version import Version

ROOT: Final = Path(__file__).resolve().parents[2]

METHODS: Final = {
    "threading": ("_shutdown",),
    "atexit": ("_run_exitfuncs",),
    "fastapi.FastAPI": ("openapi",),
    "fastapi.routing.APIRoute": ("get_route_handler",),
    "nats.aio.client.Client": (
        *("_close", "_connect_command", "_flush_pending", "_process_connect_init", "_process_op_err", "_process_pong"),
        *("_send_command", "_send_ping"),
    ),
    "nats.aio.transport.TcpTransport": ("connect", "connect_tls", "drain", "wait_closed", "write", "writelines"),
    "starlette.responses.StreamingResponse": ("__call__",),
    "uvicorn.Server": ("capture_signals", "main_loop", "on_tick", "serve", "startup"),
    "uvicorn.protocols.http.httptools_impl.HttpToolsProtocol": (
        *("connection_made", "connection_lost", "data_received", "on_body", "on_header", "on_headers_complete"),
        *("on_message_begin", "on_message_complete", "on_response_complete", "send_400_response"),
    ),
}
"""Methods by their class."""

PARAMETERS: Final = {
    "fastapi.dependencies.models.Dependant": ("dependencies", "query_params"),
    "fastapi.openapi.utils.get_openapi": ("routes",),
    "uvicorn.protocols.http.httptools_impl.HttpToolsProtocol": ("config", "server_state", "app_state"),
    "uvicorn.server.ServerState": (),
}
"""Parameters by what is called with them."""

SET: Final = {
    "nats.aio.client.Client": (
        *("_error_cb", "_flush_queue", "_flusher_task", "_pending", "_pending_data_size", "_ping_interval_task"),
        *("_pongs", "_reading_task", "_reconnection_task", "_server_info", "_status", "_subs", "_transport"),
    ),
    "nats.aio.subscription.Subscription": ("_wait_for_msgs_task",),
    "nats.aio.transport.TcpTransport": ("_bare_io_writer", "_io_writer"),
    "fastapi.FastAPI": ("router",),
    "fastapi.APIRoute": ("dependant", "path_regex"),
    "uvicorn.protocols.http.httptools_impl.HttpToolsProtocol": (
        *("app", "cycle", "logger", "loop", "scope", "transport", "url"),
    ),
    "uvicorn.protocols.http.httptools_impl.RequestResponseCycle": ("keep_alive", "response_complete"),
}
"""Attributes that an instance has, by its class."""

BOUNDED: Final = ("fastapi", "nats-py", "starlette", "uvicorn")


def _thing(name: str) -> Any:
    module, _, member = name.rpartition(".")
    if not module:
        return import_module(member)
    return getattr(import_module(module), member, None)


def _named(parts: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    return [(owner, part) for owner, each in parts.items() for part in each]


@pytest.mark.parametrize(("owner", "method"), _named(METHODS))
def test_method_that_we_override_or_call_is_there(owner: str, method: str) -> None:
    assert callable(getattr(_thing(owner), method, None)), f"this release of the library has no {owner}.{method}"


@pytest.mark.parametrize("owner", PARAMETERS)
def test_callable_takes_the_parameters_that_we_name(owner: str) -> None:
    called = _thing(owner)
    assert callable(called), f"this release of the library has no {owner}"
    missing = set(PARAMETERS[owner]) - set(inspect.signature(called).parameters)
    assert not missing, f"{owner} of this release does not take {', '.join(sorted(missing))}"


@pytest.mark.parametrize("owner", SET)
def test_instance_sets_the_attributes_that_we_use(owner: str) -> None:
    if owner.startswith("uvicorn."):  # one of these exists within a server alone: its own code sets them
        told = inspect.getsource(_thing(owner))
        missing = [name for name in SET[owner] if f"self.{name}" not in told]
    else:
        made = _made(owner)
        missing = [name for name in SET[owner] if not hasattr(made, name)]
    assert not missing, f"{owner} of this release sets no {', '.join(missing)}"


def _made(owner: str) -> object:
    match owner:
        case "nats.aio.client.Client":
            return Client()
        case "nats.aio.subscription.Subscription":
            return Subscription(Client())
        case "nats.aio.transport.TcpTransport":
            return TcpTransport()  # type: ignore[no-untyped-call]  # says no types
        case "fastapi.FastAPI":
            return FastAPI()
        case _:
            router = APIRouter()
            router.get("/")(lambda: None)
            return router.routes[0]


@pytest.mark.parametrize("name", BOUNDED)
def test_library_with_overridden_parts_has_an_upper_bound(name: str) -> None:
    """The bound is the next minor release: such parts go with any of them."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [bounds] = [each.specifier for each in map(Requirement, declared) if each.name == name]
    [least] = [Version(each.version) for each in bounds if each.operator == ">="]
    assert least in bounds
    assert Version(f"{least.major}.{least.minor + 1}") not in bounds, f"{name} has no upper bound"


def test_no_product_module_needs_the_packages_of_tests() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    product = {Requirement(each).name for each in declared["project"]["dependencies"]}
    assert "warcio" not in product
    assert "warcio" in {Requirement(each).name for each in declared["dependency-groups"]["dev"]}
