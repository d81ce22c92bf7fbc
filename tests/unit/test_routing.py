"""Routes whose plain dependencies are called directly: nothing that the framework promises of them is lost."""

import asyncio
from typing import Annotated, Any, cast

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel

from api.http.routing import Router, documents, mount
from api.server.app import ROUTERS

asked: list[str] = []


class Body(BaseModel):
    number: int


async def refuses(request: Request) -> None:
    asked.append("guard")
    if "x-pass" not in request.headers:
        raise HTTPException(403)


async def path(request: Request) -> str:
    return request.url.path


async def doubled(number: Annotated[int, Query()] = 1) -> int:
    return 2 * number


@documents
async def described(x_described: Annotated[str | None, Header()] = None) -> None:
    raise AssertionError("what only documents is not called")


Path = Annotated[str, Depends(path)]
Doubled = Annotated[int, Depends(doubled)]


def app() -> FastAPI:
    router = Router(prefix="/v1", dependencies=[Depends(refuses)])

    @router.post("/both", dependencies=[Depends(described)])
    async def both(body: Body, here: Path, twice: Doubled) -> dict[str, Any]:
        return {"here": here, "twice": twice, "number": body.number}

    @router.get("/own")
    async def own(request: Request, here: Path) -> dict[str, Any]:
        return {"here": here, "method": request.method}

    made = FastAPI()
    mount(made, router)
    return made


def send(method: str, url: str, **options: Any) -> httpx.Response:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app())
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.request(method, url, **options)

    asked.clear()
    return asyncio.run(run())


def test_values_of_plain_dependencies_are_given_beside_those_of_others() -> None:
    answer = send("POST", "/v1/both?number=4", json={"number": 3}, headers={"x-pass": "1"})
    assert answer.json() == {"here": "/v1/both", "twice": 8, "number": 3}
    assert send("GET", "/v1/own", headers={"x-pass": "1"}).json() == {"here": "/v1/own", "method": "GET"}


def test_a_guard_refuses_before_anything_of_the_request_is_judged() -> None:
    assert send("POST", "/v1/both?number=x", content=b"{").status_code == 403
    assert asked == ["guard"]


def test_what_is_not_valid_is_still_refused() -> None:
    assert send("POST", "/v1/both?number=x", json={"number": 3}, headers={"x-pass": "1"}).status_code == 422
    assert send("POST", "/v1/both", json={"number": "x"}, headers={"x-pass": "1"}).status_code == 422


def test_the_document_has_every_parameter() -> None:
    operation = app().openapi()["paths"]["/v1/both"]["post"]
    assert {each["name"] for each in operation["parameters"]} == {"number", "x-described"}


# --- straight to the endpoint -----------------------------------------------------------------------------------------


class Thing(BaseModel):
    id: int
    here: str


def things(router: APIRouter) -> FastAPI:
    @router.get("/things/{number}")
    async def thing(number: Annotated[int, PathParameter(le=9)], here: Path, response: Response) -> Thing:
        """Its headers and status are the endpoint's."""
        if number == 7:
            raise HTTPException(404, "there is none")
        if number == 8:
            response.status_code = 202
        response.headers["ETag"] = f'"{number}"'
        return Thing(id=number, here=here)

    @router.get("/made/{number}", response_model=Thing)
    async def made(number: int) -> Response:
        return JSONResponse({"id": number}, 203, {"x-made": "1"})

    @router.get("/wrong")
    async def wrong() -> Thing:
        return cast(Thing, {"id": "x"})

    app = FastAPI()
    app.router.routes.extend(router.routes)
    return app


def told(app: FastAPI, url: str) -> tuple[int, dict[str, str], bytes]:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.get(url)

    answer = asyncio.run(run())
    return answer.status_code, dict(answer.headers), answer.content


@pytest.mark.parametrize(
    ("url", "status"),
    [("/things/3", 200), ("/things/8", 202), ("/things/7", 404), ("/things/10", 422), ("/things/x", 422),
     ("/made/3", 203), ("/wrong", 500)],
)  # fmt: skip
def test_what_goes_straight_is_answered_as_the_framework_would(url: str, status: int) -> None:
    ours, theirs = things(Router()), things(APIRouter())
    assert all(getattr(route.app, "__name__", "") == "straight" for route in ours.routes if isinstance(route, APIRoute))
    assert told(ours, url) == told(theirs, url)
    assert told(ours, url)[0] == status
    assert ours.openapi() == theirs.openapi()


def test_the_reads_that_are_asked_for_all_the_time_go_straight() -> None:
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    straight = [route for route in routes if getattr(route.app, "__name__", "") == "straight"]
    found = {route.path for route in straight if route.methods == {"GET"}}
    assert {"/v1/crawls/{name}", "/v1/crawls/{name}/stats", "/v1/crawls/{name}/progress", "/v1/cluster"} <= found
