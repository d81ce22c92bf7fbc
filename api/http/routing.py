"""Routes whose guards (checks of role and query) run before FastAPI reads and decodes the request body.

Each route takes its right from the table in `api.security.rights`. A route without a row there cannot be made.
"""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from fastapi import APIRouter, FastAPI, params
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api.http.authorization import guard_of
from api.security.rights import UndeclaredRoute, right_of


class Guard(params.Depends):
    """A check of a request that runs before its body is read. It raises to refuse the request, and returns nothing."""

    def __init__(self, guard: Callable[[Request], Awaitable[None]]) -> None:
        super().__init__(guard)


class _Route(APIRoute):
    """A route that calls its guards before the framework reads the request's body.

    The first of them is that of its right. A route has one method.
    """

    def __init__(
        self, path: str, endpoint: Callable[..., Any], *, dependencies: Sequence[params.Depends] = (), **options: Any
    ) -> None:
        self._guards = [each.dependency for each in dependencies if isinstance(each, Guard) and each.dependency]
        left = [each for each in dependencies if not isinstance(each, Guard)]
        super().__init__(path, endpoint, dependencies=left, **options)
        (method,) = self.methods or {""}
        self.right: Final = right_of(method, self.path_format)
        if self.right.role is not None:
            self._guards.insert(0, guard_of(self.right))

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            for guard in self._guards:
                await guard(request)
            return await handle(request)

        return guarded


class Router(APIRouter):
    """A router whose routes run their guards first. A route's operation id is the name of its function."""

    def __init__(self, **options: Any) -> None:
        super().__init__(route_class=_Route, generate_unique_id_function=lambda route: route.name, **options)


def mount(app: FastAPI, router: Router) -> None:
    """Add the router's routes to `app` itself. FastAPI would match each route of an included router three times."""
    app.router.routes.extend(router.routes)


def check_rights(app: FastAPI) -> None:
    """Raise UndeclaredRoute if the application serves something that is not in the table of rights.

    A route below /v1 that this module did not make has no guard, so it is refused, too.
    """
    for route in app.routes:
        if isinstance(route, _Route):
            continue
        if not isinstance(route, Route):
            raise UndeclaredRoute(f"{route!r} is no route with a method and a path")
        for method in (route.methods or set()) - {"HEAD"}:
            if right_of(method, route.path_format).role is not None:
                raise UndeclaredRoute(f"{method} {route.path_format} has no guard")
