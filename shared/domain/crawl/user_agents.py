"""Detect User-Agents that name another crawler or a browser, which our crawls must not send (pure)."""

import re
from typing import Final

_BROWSERS: Final = "Chrome", "Chromium", "CriOS", "Edg", "Edge", "Firefox", "FxiOS", "MSIE", "OPR", "Opera", "Safari"
"""Product names by which servers recognize a browser."""

_CRAWLERS: Final = (
    *("AdsBot-Google", "AhrefsBot", "Amazonbot", "anthropic-ai", "APIs-Google", "Applebot", "archive.org_bot"),
    *("Baiduspider", "bingbot", "BingPreview", "Bytespider", "CCBot", "ChatGPT-User", "ClaudeBot", "Claude-Web"),
    *("DataForSeoBot", "Discordbot", "DotBot", "DuckDuckBot", "Exabot", "facebookexternalhit", "FacebookBot"),
    *("FeedFetcher-Google", "Google-Extended", "Google-InspectionTool", "Googlebot", "Googlebot-Image"),
    *("Googlebot-News", "Googlebot-Video", "GoogleOther", "GPTBot", "ia_archiver", "LinkedInBot"),
    *("Mediapartners-Google", "meta-externalagent", "MJ12bot", "msnbot", "OAI-SearchBot", "PerplexityBot", "PetalBot"),
    *("Pinterestbot", "SemrushBot", "SeznamBot", "Slackbot", "Slurp", "Sogou", "Storebot-Google", "TelegramBot"),
    *("Twitterbot", "UptimeRobot", "WhatsApp", "YandexBot", "YandexImages"),
)
"""Tokens that well-known crawlers have published, so that servers and robots.txt can recognize them."""

_CRAWLER: Final = re.compile(
    rf"(?<![A-Za-z0-9_-])({'|'.join(map(re.escape, _CRAWLERS))})(?![A-Za-z0-9_-])", re.IGNORECASE
)
_BROWSER: Final = re.compile(rf"(?<![A-Za-z0-9_-])({'|'.join(_BROWSERS)})[/ ][0-9]", re.IGNORECASE)
_MOZILLA: Final = re.compile(r"(?<![A-Za-z0-9_-])(Mozilla)/", re.IGNORECASE)
_COMPATIBLE: Final = re.compile(r"\(compatible;\s*[^\s;)/]+/", re.IGNORECASE)


def impersonated(user_agent: str) -> str | None:
    """Return the problem of a User-Agent that names another crawler or a browser, or None if it names neither.

    `Mozilla/5.0 (compatible; NAME/1.0)` is not a browser: crawlers have always named themselves so.
    """
    if (crawler := _CRAWLER.search(user_agent)) is not None:
        return f"names another crawler ({crawler[1]})"
    browser = _BROWSER.search(user_agent)
    if browser is None and _COMPATIBLE.search(user_agent) is None:
        browser = _MOZILLA.search(user_agent)
    return None if browser is None else f"names a browser ({browser[1]})"
