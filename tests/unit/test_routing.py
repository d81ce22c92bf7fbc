"""Routes whose guards are called first: nothing that the framework promises of them is lost."""

import asyncio
from typing import Annotated, Any, cast

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from api.http.routing import Guard, Router, mount
from api.security.rights import Right, RouteClass

asked: list[str] = []


@pytest.fixture(autouse=True)
def public(monkeypatch: pytest.MonkeyPatch) -> None:
    """The routes of these tests are in no table of rights."""

    def granted(method: str, path: str) -> Right:
        return Right("tests", "send", method, path, None, RouteClass.READ)

    monkeypatch.setattr("api.http.routing.right_of", granted)


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


async def described(x_described: Annotated[str | None, Header()] = None) -> None:
    """A dependency that only adds its parameters to the document."""


Path = Annotated[str, Depends(path)]
Doubled = Annotated[int, Depends(doubled)]


def app() -> FastAPI:
    router = Router(prefix="/v1", dependencies=[Guard(refuses)])

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


def test_guarded_route_gets_the_values_of_its_dependencies() -> None:
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
def test_guarded_route_answers_as_a_route_of_the_framework(url: str, status: int) -> None:
    ours, theirs = things(Router()), things(APIRouter(generate_unique_id_function=lambda route: route.name))
    assert told(ours, url) == told(theirs, url)
    assert told(ours, url)[0] == status
    assert ours.openapi() == theirs.openapi()
