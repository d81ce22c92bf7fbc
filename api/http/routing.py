"""Fast routes: work that the framework repeats for every request is done once at the start.

A dependency of the framework costs some 25 us a request, whatever it does. Ours mostly read only the request (the
services, the actor, the role), so they are called directly. A route that otherwise needs only its path parameters
bypasses the framework, which would cost three times the rest. The OpenAPI document still covers all dependencies.
"""

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from inspect import iscoroutinefunction
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.datastructures import DefaultPlaceholder
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import request_params_to_args
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.routing import APIRoute, serialize_response
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

Provider = Callable[[Request], Awaitable[Any]]

_REQUEST: Final = "request"
_JSON: Final = "application/json"


class _Route(APIRoute):
    """A route that itself calls the dependencies that read only the request.

    Dependencies without a value (guards) are called first, even before a body is read. The others are called together
    with the endpoint's other parameters. Dependencies that only document are not called.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        direct, left = _parts(self.dependant)
        if not left and _needs_path_only(self):
            self.app = _straight(self, direct)
        else:  # The framework keeps in the scope what it opens for a request.
            self.app = AsyncExitStackMiddleware(self.app)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        whole = self.dependant
        direct, left = _parts(whole)
        guards = _guards(direct)
        self.dependant = _with_values(whole, direct, left)
        try:
            handle = super().get_route_handler()
        finally:
            self.dependant = whole

        async def guarded(request: Request) -> Response:
            for guard in guards:
                await guard(request)
            return await handle(request)

        return guarded


class Router(APIRouter):
    """A router of fast routes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(route_class=_Route, **options)


def mount(app: FastAPI, router: Router) -> None:
    """Add the router's routes to those of `app`. An included router would match each of them three times."""
    app.router.routes.extend(router.routes)


def documents(dependency: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a dependency that does nothing and only adds its parameters to the document."""
    dependency.documents = True  # type: ignore[attr-defined]  # a mark, read by `_parts`
    return dependency


# --- straight to the endpoint -----------------------------------------------------------------------------------------


def _straight(route: APIRoute, direct: list[Dependant]) -> ASGIApp:
    """Return an app that calls the endpoint with its path parameters and the values of `direct`.

    It raises the framework's own errors.
    """
    guards, named = _guards(direct), _named(direct)
    whole, endpoint = route.dependant, route.endpoint
    asked_for, answered_in = whole.request_param_name, whole.response_param_name

    async def straight(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        for guard in guards:
            await guard(request)
        values, errors = request_params_to_args(whole.path_params, scope["path_params"])
        if errors:
            raise RequestValidationError(errors)
        for name, provide in named:
            values[name] = await provide(request)
        if asked_for is not None:
            values[asked_for] = request
        injected: Response | None = None
        if answered_in is not None:
            values[answered_in] = injected = _empty_response()
        result = await endpoint(**values)
        response = result if isinstance(result, Response) else await _shown(route, result, injected)
        await response(scope, receive, send)

    return straight


def _empty_response() -> Response:
    """Return a response into which an endpoint may write headers and another status."""
    response = Response()
    del response.headers["content-length"]
    response.status_code = None  # type: ignore[assignment]  # as in the framework: no status is set yet
    return response


async def _shown(route: APIRoute, result: Any, injected: Response | None) -> Response:
    """Return the endpoint's result as the response that the framework would send."""
    content = await serialize_response(field=route.response_field, response_content=result, dump_json=True)
    status = injected.status_code if injected is not None and injected.status_code else route.status_code or 200
    response = Response(content, status, media_type=_JSON)
    if injected is not None:
        response.raw_headers.extend(injected.raw_headers)
    return response


def _needs_path_only(route: APIRoute) -> bool:
    """Return True if the endpoint needs only path parameters, the request and a response to write into.

    It must also return what is sent as the JSON of a model.
    """
    own = route.dependant
    elsewhere = (own.query_params, own.header_params, own.cookie_params, own.body_params)
    special = (
        own.http_connection_param_name,
        own.websocket_param_name,
        own.background_tasks_param_name,
        own.security_scopes_param_name,
    )
    return (
        iscoroutinefunction(route.endpoint)
        and not any(elsewhere)
        and not any(special)
        and route.response_field is not None
        and route.status_code != 204
        and isinstance(route.response_class, DefaultPlaceholder)
        and not (route.is_sse_stream or route.is_json_stream)
    )


# --- dependencies that are called directly ----------------------------------------------------------------------------


def _guards(direct: list[Dependant]) -> list[Provider]:
    return [each.call for each in direct if each.name is None and each.call is not None]


def _named(direct: list[Dependant]) -> list[tuple[str, Provider]]:
    return [(each.name, each.call) for each in direct if each.name is not None and each.call is not None]


def _parts(whole: Dependant) -> tuple[list[Dependant], list[Dependant]]:
    """Return the dependencies that are called directly, and those left to the framework.

    Dependencies that only document are in neither list.
    """
    direct = [each for each in whole.dependencies if _reads_request_only(each)]
    return direct, [each for each in whole.dependencies if each not in direct and not hasattr(each.call, "documents")]


def _with_values(whole: Dependant, direct: list[Dependant], left: list[Dependant]) -> Dependant:
    """Return the endpoint's dependant with only the dependencies in `left`; its call adds the values of `direct`."""
    endpoint = whole.call
    named = _named(direct)
    if not named:
        return replace(whole, dependencies=left)
    assert iscoroutinefunction(endpoint), f"{endpoint} is a coroutine function, as every endpoint here"
    own = whole.request_param_name
    key = own or _REQUEST

    async def call(**values: Any) -> Any:
        request = values[key] if own else values.pop(key)
        for name, provide in named:
            values[name] = await provide(request)
        return await endpoint(**values)

    return replace(whole, call=call, dependencies=left, request_param_name=key)


def _reads_request_only(dependant: Dependant) -> bool:
    plain = Dependant(
        call=dependant.call,
        name=dependant.name,
        path=dependant.path,
        use_cache=dependant.use_cache,
        request_param_name=_REQUEST,
        own_oauth_scopes=dependant.own_oauth_scopes,
        parent_oauth_scopes=dependant.parent_oauth_scopes,
    )
    return iscoroutinefunction(dependant.call) and dependant == plain
