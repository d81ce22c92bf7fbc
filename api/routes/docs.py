"""/docs and /redoc: web pages that show the OpenAPI document.

This process serves every file, so the pages work without a network. Their scripts come from the fastapi-offline
package, which contains the releases of Swagger UI and ReDoc.
"""

from functools import cache
from importlib.resources import files
from typing import Final

from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from starlette.responses import HTMLResponse, RedirectResponse, Response

from api.http.routing import Router
from shared.domain.software import NAME
from shared.ports.catalog import Missing

router = Router(include_in_schema=False)

_DOCUMENT: Final = "/openapi.json"
_SWAGGER: Final = {
    "persistAuthorization": False,  # The browser must not store a key.
    "validatorUrl": None,  # The validator is on another host.
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
"""Response headers that let these pages send requests only to this master.

Users type API keys into the pages, so the browser must not send data from the pages to other servers.
"""

_LOGO: Final = (b"https://cdn.redoc.ly/redoc/logo-mini.svg", b"data:image/svg+xml,<svg/>")
"""The address from which ReDoc loads its logo, and the empty picture that replaces it."""

_ASSETS: Final = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "redoc.standalone.js": "text/javascript; charset=utf-8",
    "favicon.png": "image/png",
}


@router.get("/")
async def root() -> RedirectResponse:
    """Redirect to /docs."""
    return RedirectResponse("/docs")


@router.get("/docs")
async def swagger() -> HTMLResponse:
    """Return the page of Swagger UI, which can send requests with an API key given under "Authorize"."""
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
    """Return the page of ReDoc, which shows the OpenAPI document for reading."""
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
    """Return a file that the pages of Swagger UI and ReDoc load. Answer 404 for every other name."""
    if name not in _ASSETS:
        raise Missing(f"there is no asset {name!r}")
    return Response(_content(name), media_type=_ASSETS[name])


@cache
def _content(name: str) -> bytes:
    return (files("fastapi_offline") / "static" / name).read_bytes().replace(*_LOGO)
