"""The crawl spec: what a user declares, with every default and every bound in one place.

A spec is immutable and encodes to JSON or MessagePack. `parse_spec` (shared/domain/spec_parse.py) makes one from what a
user wrote and refuses unknown fields; decoding a stored or published spec tolerates them, so that an older process can
read what a newer one wrote. Times are seconds, sizes are bytes, `None` of a limit means unlimited.
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec
from blake3 import blake3
from msgspec import Meta

from shared.domain.fetch import FetchLimits
from shared.domain.item_rules import ItemLimits, ItemRules

DAY_S: Final = 86_400.0
SLOTS_WITHOUT_DELAY: Final = 8
"""Slots of a host whose delay is 0, unless the spec says otherwise: they hide the round trip between URL shards."""

Natural = Annotated[int, Meta(ge=1, le=2**53)]
Seconds = Annotated[float, Meta(ge=0.0, le=DAY_S)]
Timeout = Annotated[float, Meta(ge=0.1, le=3600.0)]
Size = Annotated[int, Meta(ge=1024, le=2**40)]
BufferedSize = Annotated[int, Meta(ge=1024, le=2**31)]
Priority = Annotated[int, Meta(ge=-100, le=100)]
LABEL: Final = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
LABEL_WORDS: Final = "lower-case letters, digits and inner hyphens, at most 63"
Label = Annotated[str, Meta(pattern=LABEL)]
"""A name that may stand in a subject, a path and a metric, said in words by `LABEL_WORDS`."""

Pattern = Annotated[str, Meta(min_length=1, max_length=1000)]
Patterns = Annotated[tuple[Pattern, ...], Meta(max_length=100)]


class ScopeMode(StrEnum):
    """Which outlinks belong to the crawl, judged from the page that has them."""

    HOST = "host"
    DOMAIN = "domain"
    PREFIX = "prefix"
    ANY = "any"


class Scheme(StrEnum):
    """The schemes that can be crawled."""

    HTTP = "http"
    HTTPS = "https"


class Seed(msgspec.Struct, frozen=True, kw_only=True):
    """A URL the crawl starts from. Each level of priority goes before one level of depth."""

    url: str
    priority: Priority = 0


class Traps(msgspec.Struct, frozen=True, kw_only=True):
    """Signs of endless URL spaces (shared/domain/traps.py says how each is counted); None or false switches one off."""

    max_segment_repeats: Annotated[int, Meta(ge=1, le=1000)] | None = 3
    max_parameter_repeats: Annotated[int, Meta(ge=1, le=1000)] | None = 2
    cycles: bool = True


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """What may be fetched. `include` and `exclude` are regular expressions (RE2 syntax) searched in the canonical URL.

    With `include` set, an outlink must match one of them; `exclude` wins over everything and holds for seeds too.
    """

    mode: ScopeMode = ScopeMode.HOST
    include: Patterns = ()
    exclude: Patterns = ()
    schemes: Annotated[tuple[Scheme, ...], Meta(min_length=1, max_length=2)] = (Scheme.HTTP, Scheme.HTTPS)
    max_depth: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    max_url_length: Annotated[int, Meta(ge=16, le=16_384)] = 2048
    traps: Traps = Traps()


class Politeness(msgspec.Struct, frozen=True, kw_only=True):
    """How hosts are spared. `delay_s` counts from the end of a response to the start of the next request.

    `adaptive` raises the delay to five times the last fetch time, up to `max_delay_s`. A crawl-delay of robots.txt is
    honoured however long it is. `host_slots` counts URL shards of one host out at once; None: 1, or
    `SLOTS_WITHOUT_DELAY` where the delay is 0.
    """

    obey_robots: bool = True
    delay_s: Seconds = 1.0
    max_delay_s: Seconds = 60.0
    adaptive: bool = False
    host_slots: Annotated[int, Meta(ge=1, le=64)] | None = None


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Where the crawl stops by itself."""

    max_pages: Natural | None = None
    max_bytes: Natural | None = None
    max_seconds: Natural | None = None
    max_pages_per_host: Natural | None = None

    @property
    def bounded(self) -> bool:
        """Whether the crawl may take only so much, and dispatch has to count."""
        return self.max_pages is not None or self.max_bytes is not None


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are made. `user_agent` None: made of product, version and `contact` (a URL or a mail address)."""

    user_agent: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    contact: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    headers: dict[str, str] = {}
    connect_timeout_s: Timeout = 10.0
    first_byte_timeout_s: Timeout = 20.0
    total_timeout_s: Timeout = 120.0
    max_header_bytes: Annotated[int, Meta(ge=1024, le=2**24)] = 256 * 1024
    max_body_bytes: BufferedSize = 10 * 1024 * 1024
    max_decoded_bytes: BufferedSize = 30 * 1024 * 1024
    http2: bool = True
    proxy: str | None = None

    def limits(self) -> FetchLimits:
        """The limits of each request."""
        return FetchLimits(
            connect_s=self.connect_timeout_s,
            first_byte_s=self.first_byte_timeout_s,
            total_s=self.total_timeout_s,
            header_bytes=self.max_header_bytes,
            body_bytes=self.max_body_bytes,
            decoded_bytes=self.max_decoded_bytes,
        )


class Extract(msgspec.Struct, frozen=True, kw_only=True):
    """Which links of a page are followed, and by which rules items are taken out of it (docs/items.md).

    An item of more than `max_item_bytes` as JSON is none; of a page the first `max_items_per_page` within
    `max_page_bytes` are kept.
    """

    follow_nofollow: bool = False
    srcset: bool = False
    meta_refresh: bool = True
    canonical_links: bool = True
    max_links_per_page: Annotated[int, Meta(ge=0, le=1_000_000)] = 20_000
    items: ItemRules = ()
    max_items_per_page: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    max_item_bytes: Annotated[int, Meta(ge=64, le=256 * 1024)] = 64 * 1024
    max_page_bytes: Annotated[int, Meta(ge=1024, le=256 * 1024)] = 256 * 1024

    def item_limits(self) -> ItemLimits:
        """What a page may yield."""
        return ItemLimits(self.max_items_per_page, self.max_item_bytes, self.max_page_bytes)


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often a URL is tried, and the wait before each further try: base_s, 2 base_s, 4 base_s ... up to max_s.

    A host that never gave a page and cannot be connected to `host_attempts` times in a row is given up with all its
    URLs. One that gave pages is probed with growing pauses, and given up after `outage_s` without an answer. A host
    that refuses (429, 503) without a Retry-After is held for `host_base_s`, which doubles up to `host_max_s`.
    """

    attempts: Annotated[int, Meta(ge=1, le=100)] = 3
    host_attempts: Annotated[int, Meta(ge=1, le=100)] = 3
    base_s: Seconds = 5.0
    max_s: Seconds = 3600.0
    host_base_s: Seconds = 60.0
    host_max_s: Seconds = DAY_S
    outage_s: Seconds = DAY_S


class Egress(msgspec.Struct, frozen=True, kw_only=True):
    """Networks (CIDR) that may be reached although they are private, loopback or link-local."""

    allow: Annotated[tuple[str, ...], Meta(max_length=1000)] = ()


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """How pages are archived."""

    warc_segment_bytes: Size = 2**30


class CrawlSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The declared crawl. Seed URLs are canonical once parsed."""

    seeds: Annotated[tuple[Seed, ...], Meta(min_length=1, max_length=100_000)]
    name: Label = "crawl"
    pool: Label = "default"
    weight: Annotated[int, Meta(ge=1, le=1000)] = 1
    scope: Scope = Scope()
    politeness: Politeness = Politeness()
    budget: Budget = Budget()
    fetch: Fetch = Fetch()
    extract: Extract = Extract()
    retry: Retry = Retry()
    egress: Egress = Egress()
    output: Output = Output()


def encode_spec(spec: CrawlSpec) -> bytes:
    """The spec as JSON with every field and a fixed order: equal specs give equal bytes."""
    return msgspec.json.encode(spec, order="deterministic")


def decode_spec(data: bytes | str) -> CrawlSpec:
    """The spec that `encode_spec` wrote, fields unknown here ignored; msgspec.DecodeError if it is not one."""
    return msgspec.json.decode(data, type=CrawlSpec)


def spec_digest(spec: CrawlSpec) -> str:
    """32 hex digits that differ when the spec does."""
    return blake3(encode_spec(spec)).hexdigest(length=16)


def user_agent(spec: CrawlSpec, version: str) -> str:
    """The User-Agent to send: the spec's own, or `orb/<version> (+<contact>)`; it never names a browser by itself."""
    if spec.fetch.user_agent is not None:
        return spec.fetch.user_agent
    return f"orb/{version}" + (f" (+{spec.fetch.contact})" if spec.fetch.contact else "")


def host_slots(politeness: Politeness, effective_delay_s: float) -> int:
    """URL shards of one host that may be out at once: always 1 where there is a delay to keep."""
    if effective_delay_s > 0:
        return 1
    return politeness.host_slots or SLOTS_WITHOUT_DELAY
