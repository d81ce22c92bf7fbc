"""The crawl spec: what a user declares, with every default and every bound in one place.

A spec is immutable and can be encoded as JSON or MessagePack. `parse_spec` (shared/domain/crawl/spec_parse.py) makes a
spec from user input and refuses unknown fields. `decode_spec` reads a stored or published spec and ignores unknown
fields, which a newer process may have written. Times are in seconds, and sizes in bytes. `None` for a limit means that
there is no limit.
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from shared.domain.crawl.described import described
from shared.domain.crawl.discover_spec import Discover
from shared.domain.crawl.item_rules import ItemLimits, ItemRules
from shared.domain.crawl.media_spec import Media
from shared.domain.crawl.override_spec import MAX_OVERRIDES, Override
from shared.domain.crawl.priority_rules import Priority, PriorityRules
from shared.domain.crawl.recrawl_spec import Recrawl
from shared.domain.crawl.requisites_spec import Requisites
from shared.domain.crawl.robots_spec import Robots
from shared.domain.crawl.spec_types import DAY_S as DAY_S
from shared.domain.crawl.spec_types import Natural, Patterns, Seconds
from shared.domain.crawl.spec_types import ScopeMode as ScopeMode
from shared.domain.frontier.seed_contexts import SeedContext, context_of
from shared.domain.frontier.states import MAX_EXTRA_HOPS
from shared.domain.web.fetch import FetchLimits

SLOTS_WITHOUT_DELAY: Final = 8
"""The default number of URL shards of one host that may be leased at once, if its delay is 0.

With several shards, requests go on while the results of one are reported and the next one is sent.
"""

Timeout = Annotated[float, Meta(ge=0.1, le=3600.0)]
Size = Annotated[int, Meta(ge=1024, le=2**40)]
BufferedSize = Annotated[int, Meta(ge=1024, le=2**31)]
LABEL: Final = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
LABEL_WORDS: Final = "lower-case letters, digits and inner hyphens, at most 63"
Label = Annotated[str, Meta(pattern=LABEL)]
"""A name that may be part of a NATS subject, a URL path and a metric. `LABEL_WORDS` describes its form for users."""


class Scheme(StrEnum):
    """The URL schemes that a crawl can fetch."""

    HTTP = "http"
    HTTPS = "https"


class Seed(msgspec.Struct, frozen=True, kw_only=True):
    """A URL that the crawl starts from, with its priority and its context."""

    url: Annotated[str, described("The URL, http or https. It is put into canonical form.", "https://example.org/")]
    priority: Annotated[
        Priority,
        described("Its priority. Each level goes before one level of depth; higher priorities are fetched first.", 10),
    ] = 0
    labels: Annotated[
        dict[str, str] | msgspec.UnsetType,
        described(
            "Labels that travel to the pages and items found from the seed: at most 16. None by default.",
            {"team": "search", "list": "2030-01"},
        ),
    ] = msgspec.UNSET
    source: Annotated[
        str | msgspec.UnsetType,
        described(
            "Where the seed comes from: a line of at most 512 characters that travels to the pages and items found "
            "from the seed. None by default.",
            "https://example.org/members.csv",
        ),
    ] = msgspec.UNSET

    @property
    def context(self) -> SeedContext | None:
        """The labels and the source of the seed. None if it has neither."""
        return context_of(self.labels or None, self.source or None)


class Traps(msgspec.Struct, frozen=True, kw_only=True):
    """Limits in `scope.traps` that exclude endless URL spaces (crawl/traps.py). Null or false: no limit."""

    max_segment_repeats: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        described("How often a path segment may occur in a URL. URLs beyond are excluded. Null: no limit.", 3),
    ] = 3
    max_parameter_repeats: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        described(
            "How often a query parameter may have the same value in a URL. URLs beyond are excluded. Null: no limit.", 2
        ),
    ] = 2
    cycles: Annotated[
        bool, described("True: exclude URLs with ten or more path segments of which two or more repeat in turn.")
    ] = True


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """The section `scope` of a crawl spec: which URLs may be fetched."""

    mode: Annotated[
        ScopeMode,
        described(
            "Which links of a page belong to the crawl: `host` those on the page's own host, `domain` "
            "those in its registrable domain, `prefix` those below a seed's path, `any` all."
        ),
    ] = ScopeMode.HOST
    include: Annotated[
        Patterns,
        described(
            "Regular expressions (RE2). If there are any, a link must match one of them in its canonical URL.",
            ["^https://example\\.org/docs/"],
        ),
    ] = ()
    exclude: Annotated[
        Patterns,
        described(
            "Regular expressions (RE2). A URL or seed that matches one of them in its canonical URL "
            "is excluded, even if `include` matches it.",
            ["\\.pdf$"],
        ),
    ] = ()
    schemes: Annotated[
        Annotated[tuple[Scheme, ...], Meta(min_length=1, max_length=2)],
        described("The schemes of URLs that may be fetched."),
    ] = (Scheme.HTTP, Scheme.HTTPS)
    max_depth: Annotated[
        Annotated[int, Meta(ge=0, le=10_000)] | None,
        described("The greatest number of links between a seed and a URL. 0: only the seeds. Null: no limit.", 5),
    ] = None
    max_url_length: Annotated[
        Annotated[int, Meta(ge=16, le=16_384)],
        described("The greatest length of a canonical URL in characters. Longer ones are excluded.", 2048),
    ] = 2048
    traps: Annotated[Traps, described("Limits that exclude endless URL spaces.")] = Traps()
    requisites: Annotated[
        Requisites,
        described(
            "Which images, stylesheets, scripts, fonts and media of a page are fetched, so that it can be replayed: "
            "`none`, `same-host` those on the page's own host, `all` those on any host. They have no depth of their "
            "own and count in `budget.max_requisites`, not in `budget.max_pages`."
        ),
    ] = Requisites.NONE
    extra_hops: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_EXTRA_HOPS)],
        described(
            "How many links beyond `mode` and `include` are followed. 1: also the pages that pages in scope link to. "
            "All other rules and limits apply to them, too.",
            1,
        ),
    ] = 0


class Politeness(msgspec.Struct, frozen=True, kw_only=True):
    """The section `politeness` of a crawl spec: how fast the crawl fetches from each host."""

    obey_robots: Annotated[bool, described("False: ignore robots.txt and robots directives everywhere.")] = True
    delay_s: Annotated[
        Seconds,
        described(
            "Seconds from the end of an answer of a host to the start of the next request to it. "
            "robots.txt or an operator may make it longer.",
            1.0,
        ),
    ] = 1.0
    max_delay_s: Annotated[
        Seconds,
        described(
            "The longest delay in seconds that `adaptive` may set. A longer crawl-delay of robots.txt "
            "is obeyed all the same.",
            60.0,
        ),
    ] = 60.0
    adaptive: Annotated[
        bool, described("True: raise the delay to five times the duration of the last fetch, up to `max_delay_s`.")
    ] = False
    host_slots: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | None,
        described(
            "The number of URL shards of a host that may be leased at a time. It only counts where "
            "the delay is 0. Null: 1, or 8 where the delay is 0.",
            4,
        ),
    ] = None


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The section `budget` of a crawl spec: limits at which the crawl finishes."""

    max_pages: Annotated[
        Natural | None, described("The number of pages after which the crawl finishes. Null: no limit.", 10000)
    ] = None
    max_bytes: Annotated[
        Natural | None, described("The payload in bytes after which the crawl finishes. Null: no limit.", 1073741824)
    ] = None
    max_seconds: Annotated[
        Natural | None, described("The running time in seconds after which the crawl finishes. Null: no limit.", 3600)
    ] = None
    max_pages_per_host: Annotated[
        Natural | None,
        described(
            "The number of pages of a host after which its other URLs are not fetched. A higher number queues them "
            "again. Null: no limit.",
            1000,
        ),
    ] = None

    max_requisites: Annotated[
        Natural | None,
        described(
            "The number of requisites (`scope.requisites`) that the crawl fetches at most. Null: no limit.", 100000
        ),
    ] = None
    max_requisites_per_page: Annotated[
        Annotated[int, Meta(ge=1, le=10_000)],
        described("The number of requisites of a page or stylesheet that are fetched at most.", 1000),
    ] = 1_000

    @property
    def bounded(self) -> bool:
        """True if the crawl has a limit of pages or bytes. Dispatch must then count the URLs that it leases."""
        return self.max_pages is not None or self.max_bytes is not None


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """The section `fetch` of a crawl spec: how requests are made."""

    user_agent: Annotated[
        Annotated[str, Meta(min_length=1, max_length=512)] | None,
        described(
            "The User-Agent header. Null: `orb/<version>`, with `contact` if it is set.",
            "examplebot/1.0 (+https://example.org/bot)",
        ),
    ] = None
    contact: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | None,
        described(
            "A URL or mail address for the owners of sites. It is part of the default User-Agent. Null: none.",
            "https://example.org/bot",
        ),
    ] = None
    headers: Annotated[
        dict[str, str], described("Further request headers, by name, sent as ISO-8859-1.", {"accept-language": "en"})
    ] = {}
    connect_timeout_s: Annotated[
        Timeout, described("Seconds for the look-up of the name, and again for the connection, else it fails.", 10.0)
    ] = 10.0
    first_byte_timeout_s: Annotated[
        Timeout, described("Seconds from the request until the answer must begin, else the fetch fails.", 20.0)
    ] = 20.0
    total_timeout_s: Annotated[
        Timeout, described("Seconds that a fetch may take after the look-up. A longer body is truncated then.", 120.0)
    ] = 120.0
    max_header_bytes: Annotated[
        Annotated[int, Meta(ge=1024, le=2**24)],
        described("The greatest size of an answer's headers in bytes. The fetch fails beyond.", 262144),
    ] = 256 * 1024
    max_body_bytes: Annotated[
        BufferedSize,
        described("The greatest size of a body in bytes, as transferred. A longer body is truncated.", 10485760),
    ] = 10 * 1024 * 1024
    max_decoded_bytes: Annotated[
        BufferedSize,
        described("The greatest size of a body in bytes after decompression. The rest is not parsed.", 31457280),
    ] = 30 * 1024 * 1024
    http2: Annotated[bool, described("True: use HTTP/2 where the host offers it.")] = True
    proxy: Annotated[
        str | None, described("The URL of a proxy for all requests. Null: none.", "http://proxy.example.org:3128")
    ] = None

    def limits(self) -> FetchLimits:
        """Return the time and size limits of each request, in the form that the fetcher needs."""
        return FetchLimits(
            connect_s=self.connect_timeout_s,
            first_byte_s=self.first_byte_timeout_s,
            total_s=self.total_timeout_s,
            header_bytes=self.max_header_bytes,
            body_bytes=self.max_body_bytes,
            decoded_bytes=self.max_decoded_bytes,
        )


class Extract(msgspec.Struct, frozen=True, kw_only=True):
    """The section `extract` of a crawl spec: which links are followed and which items extracted (docs/items.md)."""

    follow_nofollow: Annotated[
        bool, described("True: follow links with rel=nofollow, and links of pages with that robots directive.")
    ] = False
    srcset: Annotated[bool, described("True: follow the URLs in srcset attributes.")] = False
    meta_refresh: Annotated[bool, described("True: follow the URL of a meta refresh.")] = True
    canonical_links: Annotated[bool, described("True: follow links with rel=canonical.")] = True
    max_links_per_page: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000)],
        described("The number of links of a page that are followed at most.", 20000),
    ] = 20_000
    items: Annotated[ItemRules, described("Rules that extract items from pages (docs/items.md).")] = ()
    max_items_per_page: Annotated[
        Annotated[int, Meta(ge=1, le=10_000)], described("The number of items of a page that are kept at most.", 1000)
    ] = 1_000
    max_item_bytes: Annotated[
        Annotated[int, Meta(ge=64, le=256 * 1024)],
        described("The greatest size of an item in bytes, as JSON. Larger ones are dropped.", 65536),
    ] = 64 * 1024
    max_page_bytes: Annotated[
        Annotated[int, Meta(ge=1024, le=256 * 1024)],
        described("The greatest size of all items of a page in bytes, as JSON. The first ones are kept.", 262144),
    ] = 256 * 1024

    def item_limits(self) -> ItemLimits:
        """Return the limits on the items of one page, in the form that the extraction needs."""
        return ItemLimits(self.max_items_per_page, self.max_item_bytes, self.max_page_bytes)


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """The section `retry` of a crawl spec: how often a URL is tried, and how long it waits before each further attempt.

    If one URL fails, only this URL waits: base_s, 2 base_s, 4 base_s ... up to max_s. If a host cannot be reached, all
    its URLs wait for growing pauses, and none uses up an attempt. If the host gave pages before, it is given up after
    outage_s. Otherwise it is given up after host_attempts failed connections in a row. All its URLs then fail.
    """

    attempts: Annotated[
        Annotated[int, Meta(ge=1, le=100)], described("The number of attempts after which a URL fails.", 3)
    ] = 3
    host_attempts: Annotated[
        Annotated[int, Meta(ge=1, le=100)],
        described(
            "The number of failed connections in a row after which a host that never gave a page is "
            "given up with all its URLs.",
            3,
        ),
    ] = 3
    base_s: Annotated[
        Seconds, described("Seconds until the second attempt. The wait doubles with each further attempt.", 5.0)
    ] = 5.0
    max_s: Annotated[Seconds, described("The longest wait between two attempts in seconds.", 3600.0)] = 3600.0
    host_base_s: Annotated[
        Seconds,
        described(
            "Seconds for which a host is left alone after an answer 429 or 503 without Retry-After. "
            "The time doubles each time.",
            60.0,
        ),
    ] = 60.0
    host_max_s: Annotated[
        Seconds, described("The longest time in seconds for which a host is left alone after such an answer.", 86400.0)
    ] = DAY_S
    outage_s: Annotated[
        Seconds, described("Seconds without an answer after which a host that gave pages before is given up.", 86400.0)
    ] = DAY_S


class Egress(msgspec.Struct, frozen=True, kw_only=True):
    """The section `egress` of a crawl spec: private, loopback or link-local networks (CIDR) that may be reached."""

    allow: Annotated[
        Annotated[tuple[str, ...], Meta(max_length=1000)],
        described(
            "Networks (CIDR) that may be reached although they are private, loopback or link-local. "
            "Workers must allow them too.",
            ["10.1.0.0/16"],
        ),
    ] = ()


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """The section `output` of a crawl spec: how pages are archived."""

    warc_segment_bytes: Annotated[
        Size, described("The size in bytes after which a WARC file is closed and the next one begins.", 1073741824)
    ] = 2**30


class CrawlSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The spec of a crawl, as a user declares it. After `parse_spec` its seed URLs are canonical."""

    seeds: Annotated[
        Annotated[tuple[Seed, ...], Meta(min_length=1, max_length=100_000)],
        described("The URLs to start from. A seed is a URL, or an object with a URL, priority, labels and source."),
    ]
    name: Label = "crawl"
    pool: Annotated[Label, described("The pool of workers that fetches for the crawl.", "default")] = "default"
    weight: Annotated[
        Annotated[int, Meta(ge=1, le=1000)],
        described("The crawl's share of the pool, in relation to the weights of other crawls.", 1),
    ] = 1
    scope: Annotated[Scope, described("Which URLs are fetched.")] = Scope()
    priority: Annotated[
        PriorityRules,
        described(
            "Priorities of URLs by pattern, within each host. The first rule that matches applies when a URL is found.",
            [{"match": "/news/", "value": 10}, {"match": "\\.pdf$", "value": -5}],
        ),
    ] = ()
    politeness: Annotated[Politeness, described("How fast each host is fetched from.")] = Politeness()
    robots: Annotated[Robots, described("Hosts whose robots rules are ignored.")] = Robots()
    budget: Annotated[Budget, described("Limits at which the crawl finishes.")] = Budget()
    overrides: Annotated[
        Annotated[tuple[Override, ...], Meta(max_length=MAX_OVERRIDES)],
        described(
            "Other values for some hosts or domains. The first override whose `hosts` match the host of a URL applies.",
            [{"hosts": ["*.example.org"], "delay_s": 5.0, "max_depth": 3, "max_pages_per_host": 1000}],
        ),
    ] = ()
    fetch: Annotated[Fetch, described("How requests are made.")] = Fetch()
    extract: Annotated[Extract, described("Which links are followed, and which items are extracted.")] = Extract()
    media: Annotated[Media, described("Which pages are fetched, stored and parsed, by their media types.")] = Media()
    discover: Annotated[Discover, described("Sources of URLs besides the links of pages.")] = Discover()
    retry: Annotated[Retry, described("When failed fetches are repeated.")] = Retry()
    recrawl: Annotated[Recrawl, described("When stored pages are fetched again.")] = Recrawl()
    egress: Annotated[Egress, described("Which private networks may be reached.")] = Egress()
    output: Annotated[Output, described("How pages are archived.")] = Output()


_decoder: Final = msgspec.json.Decoder(CrawlSpec)
"""The decoder of specs. It takes long to make, so it is made at import, and forked processes inherit it."""


def encode_spec(spec: CrawlSpec) -> bytes:
    """Return the spec as JSON. It has every field in a fixed order, so equal specs give equal bytes."""
    return msgspec.json.encode(spec, order="deterministic")


def decode_spec(data: bytes | str) -> CrawlSpec:
    """Return the spec that `encode_spec` encoded as `data`. Ignore unknown fields.

    Raise msgspec.DecodeError if `data` is invalid.
    """
    return _decoder.decode(data)


def user_agent(spec: CrawlSpec, version: str) -> str:
    """Return the User-Agent header of the crawl's requests: the spec's own, or `orb/<version> (+<contact>)`."""
    if spec.fetch.user_agent is not None:
        return spec.fetch.user_agent
    return f"orb/{version}" + (f" (+{spec.fetch.contact})" if spec.fetch.contact else "")


def host_slots(politeness: Politeness, effective_delay_s: float) -> int:
    """Return how many URL shards of one host may be leased at once.

    It is 1 if the host's delay is above 0. Otherwise it is `politeness.host_slots`, or SLOTS_WITHOUT_DELAY if that is
    not set.
    """
    if effective_delay_s > 0:
        return 1
    return politeness.host_slots or SLOTS_WITHOUT_DELAY
