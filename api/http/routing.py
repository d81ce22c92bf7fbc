"""Routes whose guards (checks of role and query) run before FastAPI reads and decodes the request body."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, params
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response


class Guard(params.Depends):
    """A check of a request that runs before its body is read. It raises to refuse the request, and returns nothing."""

    def __init__(self, guard: Callable[[Request], Awaitable[None]]) -> None:
        super().__init__(guard)


class _Route(APIRoute):
    """A route that calls its guards before the framework reads the request's body."""

    def __init__(
        self, path: str, endpoint: Callable[..., Any], *, dependencies: Sequence[params.Depends] = (), **options: Any
    ) -> None:
        self._guards = [each.dependency for each in dependencies if isinstance(each, Guard) and each.dependency]
        left = [each for each in dependencies if not isinstance(each, Guard)]
        super().__init__(path, endpoint, dependencies=left, **options)

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
