"""docs/glossary.md explains every value that the API, events and metrics show, in alphabetical order."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Final, get_args

import pytest

from api.schemas.cluster import MemberState
from api.schemas.pages import SeedSource
from shared.domain.crawl.exclusions import OWNER
from shared.domain.crawl.item_rules import Refusal
from shared.domain.crawl.media_spec import NOT_PARSED
from shared.domain.crawl.requisites_spec import MAX_REQUISITES, REQUISITES_PER_PAGE
from shared.domain.crawl.scope import ExclusionReason
from shared.domain.crawl.spec import Scheme, ScopeMode
from shared.domain.crawl.state import CANCELLED, COMPLETE, REFRESHED, Verb
from shared.domain.explain.excluded_links import LINKS_PER_PAGE, NOFOLLOW, SITEMAP_LOCATION
from shared.domain.explain.waits import WaitReason
from shared.domain.frontier.commands import SEED_DELETED, SEED_WITHDRAWN, CommandKind
from shared.domain.frontier.failure import HOST_UNREACHABLE
from shared.domain.frontier.placement import StoreKind
from shared.domain.frontier.states import CrawlState, UrlState
from shared.domain.ops.access import Role
from shared.domain.ops.watermarks import Resource
from shared.domain.web.fetch import FailureKind
from shared.wire.events import EventKind

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "glossary.md"
ENUMS: Final[dict[str, type[StrEnum]]] = {
    "command": CommandKind,
    "crawl state": CrawlState,
    "event kind": EventKind,
    "exclusion reason": ExclusionReason,
    "failure kind": FailureKind,
    "member state": MemberState,
    "resource": Resource,
    "role": Role,
    "scheme": Scheme,
    "scope mode": ScopeMode,
    "seed source": SeedSource,
    "store": StoreKind,
    "verb": Verb,
    "wait reason": WaitReason,
}
VALUES: Final[dict[str, set[str]]] = {
    **{kind: {str(value) for value in values} for kind, values in ENUMS.items()},
    "URL state": {state.name.lower() for state in UrlState},
    "finish reason": {CANCELLED, COMPLETE, REFRESHED, "max_pages", "max_bytes", "max_seconds"},
    "failure reason": {HOST_UNREACHABLE, "poison"},
    "item refusal": set(get_args(Refusal)),
}
NOT_IN_ENUMS: Final = {
    "exclusion reason": {
        *(OWNER, SEED_DELETED, SEED_WITHDRAWN, LINKS_PER_PAGE, NOFOLLOW, SITEMAP_LOCATION, "max_pages_per_host"),
        *(MAX_REQUISITES, REQUISITES_PER_PAGE, NOT_PARSED),
    },
    "failure reason": {"http_STATUS"},
    "verb": {"drain", "undrain"},
}
"""Values of a kind that no enum has."""


def glossary() -> list[tuple[str, str, str]]:
    """Return word, kind and meaning of each row."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return [(word.strip("`"), kind, meaning) for word, kind, meaning in rows if word != "Word"]


def listed(kind: str) -> set[str]:
    """Return the words of a kind."""
    return {word for word, kinds, _ in glossary() if kind in kinds.split(", ")}


@pytest.mark.parametrize("kind", VALUES)
def test_glossary_has_every_public_value(kind: str) -> None:
    assert listed(kind) == VALUES[kind] | NOT_IN_ENUMS.get(kind, set())


def test_glossary_is_alphabetical_and_has_each_word_once() -> None:
    words = [word for word, _, _ in glossary()]
    assert len(words) > 130
    assert len(set(words)) == len(words)
    assert words == sorted(words, key=lambda word: (re.sub("[_-]", " ", word.lower()), word))


def test_glossary_is_linked_from_the_documentation() -> None:
    assert "(glossary.md)" in PAGE.with_name("README.md").read_text("utf-8")
