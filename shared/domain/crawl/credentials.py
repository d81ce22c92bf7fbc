"""Find and mask credentials in specs. A crawl would send them to every host, and show them to every viewer.

These functions are pure.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from shared.domain.crawl.spec import CrawlSpec

HEADERS: Final = frozenset({"authorization", "proxy-authorization", "cookie"})
"""Headers that carry a credential, in lower case."""

MASK: Final = "********"

_USERINFO: Final = re.compile(r"(?<=//)[^/?#]*@")


def has_userinfo(url: str) -> bool:
    """Return True if a URL has a user name or a password."""
    return _USERINFO.search(url) is not None


def without_credentials(spec: CrawlSpec) -> CrawlSpec:
    """Return the spec without credentials. Specs of an earlier release may still contain them."""
    fetch = spec.fetch
    headers = {name: value for name, value in fetch.headers.items() if name.lower() not in HEADERS}
    proxy = None if fetch.proxy is None else _USERINFO.sub("", fetch.proxy)
    if headers == fetch.headers and proxy == fetch.proxy:
        return spec
    return msgspec.structs.replace(spec, fetch=msgspec.structs.replace(fetch, headers=headers, proxy=proxy))


def masked_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a stored spec, as plain JSON values, with a mask in place of each credential."""
    match spec.get("fetch"):
        case {**fetch}:
            masked = dict(fetch)
            if isinstance(headers := fetch.get("headers"), Mapping):
                masked["headers"] = {
                    name: MASK if name.lower() in HEADERS else value for name, value in headers.items()
                }
            if isinstance(proxy := fetch.get("proxy"), str):
                masked["proxy"] = _USERINFO.sub(f"{MASK}@", proxy)
            return {**spec, "fetch": masked}
    return spec
