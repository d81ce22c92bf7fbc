"""Reads a stored page by its location."""

from shared.domain.archive.model import RecordLocation
from shared.domain.archive.stored_response import DECODED_LIMIT, RECORD_LIMIT, NotARecord, StoredResponse, parse_stored
from shared.ports.archive import RecordUnreadable, SegmentStore


def read_response(
    store: SegmentStore,
    location: RecordLocation,
    *,
    record_limit: int = RECORD_LIMIT,
    decoded_limit: int = DECODED_LIMIT,
) -> StoredResponse:
    """Return the response or revisit record at `location`, by one seek and one read. Blocks.

    Raise RecordUnreadable if there is none.
    """
    member = store.read(location)
    try:
        return parse_stored(member, record_limit=record_limit, decoded_limit=decoded_limit)
    except NotARecord as failure:
        raise RecordUnreadable(f"{location.segment} at byte {location.offset}: {failure}") from failure
