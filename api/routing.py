"""Routes that cost little: what the framework does anew for every request is done once here.

A dependency of the framework costs some 25 us a request, whatever it does. Ours mostly read the request and nothing
else (the services, who asks, whether he may), so they are called directly. The OpenAPI document is made from the
whole of them as before.
"""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from inspect import iscoroutinefunction
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

_REQUEST: Final = "request"


class _Route(APIRoute):
    """Calls dependencies that read the request only: those without a value (guards) first of all, even before a body
    is read; the others beside the endpoint's other parameters. What only documents is not called at all."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        whole = self.dependant
        direct = [each for each in whole.dependencies if _reads_request_only(each)]
        guards = [each.call for each in direct if each.name is None and each.call is not None]
        self.dependant = _with_values(whole, direct)
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
    """A router of such routes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(route_class=_Route, **options)


def mount(app: FastAPI, router: APIRouter) -> None:
    """Put its routes beside those that `app` has. Included as a router, it would look for each of them three times."""
    app.router.routes.extend(router.routes)


def documents(dependency: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a dependency whose parameters stand in the document, and which does nothing."""
    dependency.documents = True  # type: ignore[attr-defined]  # a mark, read below
    return dependency


def _with_values(whole: Dependant, direct: list[Dependant]) -> Dependant:
    """The endpoint, which is given the values of `direct` by a call of each, and the dependencies that are left."""
    endpoint = whole.call
    named = [(each.name, each.call) for each in direct if each.name is not None and each.call is not None]
    left = [each for each in whole.dependencies if each not in direct and not hasattr(each.call, "documents")]
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
