"""/docs and /redoc: the document for people. Every byte comes from this process: they work without a network.

The pages' scripts come with the fastapi-offline package, which carries the releases of Swagger UI and ReDoc.
"""

from functools import cache
from importlib.resources import files
from typing import Final

from fastapi import APIRouter
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from starlette.responses import HTMLResponse, Response

from shared.domain.software import NAME
from shared.ports.catalog import Missing

router = APIRouter(include_in_schema=False)

_DOCUMENT: Final = "/openapi.json"
_ASSETS: Final = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "redoc.standalone.js": "text/javascript; charset=utf-8",
    "favicon.png": "image/png",
}


@router.get("/docs")
async def swagger() -> HTMLResponse:
    """Swagger UI: try requests out, with a key given under "Authorize"."""
    return get_swagger_ui_html(
        openapi_url=_DOCUMENT,
        title=NAME,
        swagger_js_url="/assets/swagger-ui-bundle.js",
        swagger_css_url="/assets/swagger-ui.css",
        swagger_favicon_url="/assets/favicon.png",
        swagger_ui_parameters={"persistAuthorization": False, "validatorUrl": None, "tryItOutEnabled": True},
    )


@router.get("/redoc")
async def redoc() -> HTMLResponse:
    """ReDoc: the same to read."""
    return get_redoc_html(
        openapi_url=_DOCUMENT,
        title=NAME,
        redoc_js_url="/assets/redoc.standalone.js",
        redoc_favicon_url="/assets/favicon.png",
        with_google_fonts=False,
    )


@router.get("/assets/{name}")
async def asset(name: str) -> Response:
    """One of the pages' files; nothing else of the package."""
    if name not in _ASSETS:
        raise Missing(f"there is no asset {name!r}")
    return Response(_content(name), media_type=_ASSETS[name])


@cache
def _content(name: str) -> bytes:
    return (files("fastapi_offline") / "static" / name).read_bytes()
