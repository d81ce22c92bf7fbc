"""Routes whose guards (checks of role, query and rate) run before FastAPI reads and decodes the request body.

Each route is looked up in the table `api.security.rights`. A route that is not in the table cannot be created.
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
    """A check that a route runs before it reads the request body. The function `guard` raises to refuse the request."""

    def __init__(self, guard: Callable[[Request], Awaitable[None]]) -> None:
        super().__init__(guard)


class _Route(APIRoute):
    """A route that calls its guards before FastAPI reads the request body. It has exactly one HTTP method.

    The first guard checks the right that the table of rights names for the route. Then come the `Guard` dependencies.
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
    """A router whose routes run their guards first. A route's operation id is the name of its endpoint function."""

    def __init__(self, **options: Any) -> None:
        super().__init__(route_class=_Route, generate_unique_id_function=lambda route: route.name, **options)


def mount(app: FastAPI, router: Router) -> None:
    """Add the routes of `router` directly to `app`.

    With `include_router`, FastAPI would match each route three times.
    """
    app.router.routes.extend(router.routes)


def check_rights(app: FastAPI) -> None:
    """Raise UndeclaredRoute if the application has a route that is not in the table of rights.

    Raise it also for a route that needs a role but was not created by `Router`, because such a route has no guard.
    """
    for route in app.routes:
        if isinstance(route, _Route):
            continue
        if not isinstance(route, Route):
            raise UndeclaredRoute(f"{route!r} is no route with a method and a path")
        for method in (route.methods or set()) - {"HEAD"}:
            if right_of(method, route.path_format).role is not None:
                raise UndeclaredRoute(f"{method} {route.path_format} has no guard")
