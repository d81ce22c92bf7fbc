"""Lists of the REST API, walked as their `Link` headers lead."""

from typing import Any

import httpx


async def walked(client: httpx.AsyncClient, url: str) -> list[dict[str, Any]]:
    """Every entry of a list, page by page."""
    items: list[dict[str, Any]] = []
    while True:
        response = await client.get(url)
        assert response.status_code == 200, response.text
        items += response.json()["items"]
        if "next" not in response.links:
            return items
        url = response.links["next"]["url"]


def every(client: httpx.Client, url: str) -> list[dict[str, Any]]:
    """The same over a connection that blocks."""
    items: list[dict[str, Any]] = []
    while True:
        response = client.get(url)
        assert response.status_code == 200, response.text
        items += response.json()["items"]
        if "next" not in response.links:
            return items
        url = response.links["next"]["url"]
