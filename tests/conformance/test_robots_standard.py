"""RFC 9309: cases as data, written from the standard. Each has the section that it comes from, and each is a must."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from shared.domain.web.robots import (
    MAX_ROBOTS_BYTES,
    MAX_ROBOTS_HOPS,
    AllowAll,
    Rules,
    Unreachable,
    policy_of,
    product_token,
    robots_record,
)
from shared.domain.web.robots_rules import rules_for
from shared.domain.web.url import canonicalize

SITE: Final = "https://www.example.com"
CASES: Final[dict[str, list[dict[str, Any]]]] = json.loads(
    (Path(__file__).parent / "cases" / "robots.json").read_text("utf-8")
)
MEANINGS: Final = {"rules": Rules, "allow all": AllowAll, "disallow all": Unreachable}


@pytest.mark.parametrize("case", CASES["access"], ids=lambda case: f"{case['section']}-{case['token']}")
def test_rules_of_rfc_9309_allow_and_forbid(case: dict[str, Any]) -> None:
    rules = rules_for(case["robots"].encode(), case["token"])
    for paths, expected in ((case["allowed"], True), (case["forbidden"], False)):
        for path in paths:
            url = canonicalize(SITE + path)
            assert url is not None
            assert rules.allows(url) is expected, path


@pytest.mark.parametrize("case", CASES["results"], ids=lambda case: str(case["status"]))
def test_access_results_of_rfc_9309_have_their_meaning(case: dict[str, Any]) -> None:
    """A status of 0 stands for no answer."""
    record = robots_record(case["status"], b"user-agent: *\ndisallow: /\n", fetched_at_ms=0)
    assert isinstance(policy_of(record), MEANINGS[case["meaning"]]), case["section"]


def test_cases_cover_the_protocol_and_every_access_result() -> None:
    sections = {case["section"].split()[0] for case in CASES["access"]}
    assert sections >= {"2.2", "2.2.1", "2.2.2", "2.2.3", "2.2.4", "2.3.1.5", "5.1", "5.2"}
    assert {case["section"][:7] for case in CASES["results"]} >= {f"2.3.1.{n}" for n in (1, 2, 3, 4)}


def test_bounds_of_rfc_9309_are_kept() -> None:
    """§2.3.1.2: at least five redirects. §2.4: at most 24 hours. §2.5: at least 500 KiB are parsed."""
    assert MAX_ROBOTS_HOPS >= 5
    assert robots_record(200, b"", fetched_at_ms=0, max_age_s=1e9).lifetime_s == 86_400
    assert MAX_ROBOTS_BYTES >= 500 * 1024
    text = b"user-agent: *\n" + b"# filler\n" * (499 * 1024 // 9) + b"disallow: /a\n"
    policy = policy_of(robots_record(200, text, fetched_at_ms=0))
    assert isinstance(policy, Rules)
    assert not policy.rules.allows(f"{SITE}/a", "orb")


def test_product_token_is_that_of_the_identification_string() -> None:
    """§2.2.1: the example of an identification string."""
    identification = "Mozilla/5.0 (compatible; ExampleBot/0.1; https://www.example.com/bot.html)"
    assert product_token(identification).lower() == "examplebot"
