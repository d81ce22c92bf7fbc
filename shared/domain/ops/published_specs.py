"""The text of a crawl's spec that the leader publishes to the workers, and the most bytes that it may have."""

from typing import Final

import msgspec

from shared.domain.crawl.scope_change import needs_seeds
from shared.domain.crawl.spec import decode_spec
from shared.domain.crawl.spec_rules import SpecProblem

MAX_SPEC_BYTES: Final = 1_500_000
"""The most bytes of a published spec. It is one value in etcd, which refuses requests over 1.5 MiB (1,572,864 bytes).

The rest is for the other fields of the record and of the request.
"""


def published_text(document: bytes) -> bytes:
    """Return the stored text of a spec as the leader publishes it. Raise msgspec.DecodeError if it is invalid.

    The text is published unchanged if it has at most MAX_SPEC_BYTES. In a longer text only the first seed is kept, if
    the scope of the spec does not need the seeds: workers use the seeds for nothing else. Fields that a later version
    has written are kept.
    """
    if len(document) <= MAX_SPEC_BYTES:
        return document
    spec = decode_spec(document)
    if needs_seeds(spec):
        return document
    fields = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    return msgspec.json.encode(fields | {"seeds": msgspec.Raw(msgspec.json.encode(spec.seeds[:1]))})


def size_problem(document: bytes) -> SpecProblem | None:
    """Return what is wrong if the spec is too large to be published. Return None if it can be published.

    `document`: the stored text of the spec. Raise msgspec.DecodeError if it is invalid.
    """
    size = len(published_text(document))
    if size <= MAX_SPEC_BYTES:
        return None
    message = f"workers would get {size} bytes, the limit is {MAX_SPEC_BYTES}"
    if needs_seeds(decode_spec(document)):
        hint = (
            "in mode prefix and with extra_hops workers get the seeds: declare fewer, and add the others with "
            "`POST /v1/crawls/{name}/seeds` or seed sets, whose prefixes and hosts do not widen the scope"
        )
        return SpecProblem("seeds", message, hint)
    return SpecProblem("", message, "shorten its patterns, rules and overrides")
