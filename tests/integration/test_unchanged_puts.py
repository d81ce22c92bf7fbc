"""A PUT that changes nothing sends no event."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from api.events.publisher import EventPublisher
from shared.domain.ops.access import Role
from tests.support.api.rest_api import api


@pytest.mark.parametrize(
    ("at", "first", "second"),
    [
        ("/v1/crawls/docs/seed-sets/one", {"seeds": ["http://a.test/"]}, {"seeds": []}),
        ("/v1/host-policies/a.test", {"delay_s": 2}, {"delay_s": 3}),
        ("/v1/exclusions/1", {"reason": "asked again"}, {"reason": "asked by mail"}),
    ],
)
def test_put_sends_an_event_only_if_something_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, first: Mapping[str, Any], second: Mapping[str, Any]
) -> None:
    sent: list[str] = []

    def publish(
        self: EventPublisher, kind: object, about: object, action: str, *, data: Mapping[str, Any], **more: object
    ) -> None:
        sent.append(data["change"])

    monkeypatch.setattr(EventPublisher, "publish", publish)

    async def story() -> None:
        async with api(tmp_path / "orb.db") as opened, opened.as_role(Role.OPERATOR) as client:
            await opened.created("docs", start=False)
            made = await client.post("/v1/exclusions", json={"target": "b.test", "reason": "asked by mail"})
            assert made.status_code == 201, made.text
            sent.clear()
            for body in (first, first, second, second):
                answer = await client.put(at, json=body)
                assert answer.is_success, answer.text

    asyncio.run(story())
    expected = ["replaced", "replaced"] if "exclusions" in at else ["created", "replaced"]
    assert sent == expected
