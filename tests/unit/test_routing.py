"""Routes whose plain dependencies are called directly: nothing that the framework promises of them is lost."""

import asyncio
from typing import Annotated, Any

import httpx
from fastapi import Depends, FastAPI, Header, HTTPException, Query, Request
from pydantic import BaseModel

from api.routing import Router, documents, mount

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
