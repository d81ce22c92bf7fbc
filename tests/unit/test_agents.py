"""User-Agents that a crawl must not send, and those that only look like them."""

import pytest

from shared.domain.crawl.spec_rules import impersonated

CHROME = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Safari/537.36"


@pytest.mark.parametrize(
    ("agent", "named"),
    [
        ("Googlebot", "another crawler (Googlebot)"),
        ("Mozilla/5.0 (compatible; googlebot/2.1; +http://www.google.com/bot.html)", "another crawler (googlebot)"),
        ("Googlebot-Image/1.0", "another crawler (Googlebot-Image)"),
        ("mybot/1.0 (like bingbot)", "another crawler (bingbot)"),
        ("facebookexternalhit/1.1", "another crawler"),
        (CHROME, "a browser (Chrome)"),
        ("Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0", "a browser (Firefox)"),
        ("Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)", "a browser (MSIE)"),
        ("Mozilla/5.0 (compatible; mybot/1.0) Chrome/126.0.0.0", "a browser (Chrome)"),
        ("Mozilla/5.0", "a browser (Mozilla)"),
        ("Opera/9.80 (X11)", "a browser (Opera)"),
    ],
)
def test_agent_of_others_is_named(agent: str, named: str) -> None:
    assert named in (impersonated(agent) or "")


@pytest.mark.parametrize(
    "agent",
    [
        "orb/1.2.3 (+https://example.org/bot)",
        "mybot/1.0",
        "Mozilla/5.0 (compatible; mybot/1.0; +https://example.org/bot)",
        "my-googlebot-checker/1.0",
        "chrome-archive/2 (team@example.org)",
        "slurper/3",
    ],
)
def test_own_name_of_a_crawler_is_accepted(agent: str) -> None:
    assert impersonated(agent) is None
