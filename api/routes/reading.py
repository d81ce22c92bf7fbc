"""/docs and /redoc: the document for people. Every byte comes from this process: they work without a network.

The pages' scripts come with the fastapi-offline package, which carries the releases of Swagger UI and ReDoc.
"""

from functools import cache
from importlib.resources import files
from typing import Final

from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from starlette.responses import HTMLResponse, RedirectResponse, Response

from api.routing import Router
from shared.domain.software import NAME
from shared.ports.catalog import Missing

router = Router(include_in_schema=False)

_DOCUMENT: Final = "/openapi.json"
_SWAGGER: Final = {
    "persistAuthorization": False,  # a key does not stay in the browser
    "validatorUrl": None,  # which would be another host's
    "tryItOutEnabled": True,
    "displayRequestDuration": True,
    "filter": True,
    "defaultModelsExpandDepth": 0,
}
_KEPT_HERE: Final = {
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline'; worker-src 'self' blob:;"
    " style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""A browser that shows these pages, keys typed into them included, speaks with this master and nobody else."""

_LOGO: Final = (b"https://cdn.redoc.ly/redoc/logo-mini.svg", b"data:image/svg+xml,<svg/>")
"""ReDoc's picture beside its name at the bottom lies on a host of its maker's: nothing is shown in its place."""

_ASSETS: Final = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "redoc.standalone.js": "text/javascript; charset=utf-8",
    "favicon.png": "image/png",
}


@router.get("/")
async def root() -> RedirectResponse:
    """To the document for people."""
    return RedirectResponse("/docs")


@router.get("/docs")
async def swagger() -> HTMLResponse:
    """Swagger UI: try requests out, with a key given under "Authorize"."""
    page = get_swagger_ui_html(
        openapi_url=_DOCUMENT,
        title=NAME,
        swagger_js_url="/assets/swagger-ui-bundle.js",
        swagger_css_url="/assets/swagger-ui.css",
        swagger_favicon_url="/assets/favicon.png",
        swagger_ui_parameters=_SWAGGER,
    )
    page.headers.update(_KEPT_HERE)
    return page


@router.get("/redoc")
async def redoc() -> HTMLResponse:
    """ReDoc: the same to read."""
    page = get_redoc_html(
        openapi_url=_DOCUMENT,
        title=NAME,
        redoc_js_url="/assets/redoc.standalone.js",
        redoc_favicon_url="/assets/favicon.png",
        with_google_fonts=False,
    )
    page.headers.update(_KEPT_HERE)
    return page


@router.get("/assets/{name}")
async def asset(name: str) -> Response:
    """One of the pages' files; nothing else of the package."""
    if name not in _ASSETS:
        raise Missing(f"there is no asset {name!r}")
    return Response(_content(name), media_type=_ASSETS[name])


@cache
def _content(name: str) -> bytes:
    return (files("fastapi_offline") / "static" / name).read_bytes().replace(*_LOGO)
