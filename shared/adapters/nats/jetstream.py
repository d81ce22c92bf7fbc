"""The JetStream protocol: API calls, answers to publishes, metadata of deliveries, times and errors."""

from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from shared.adapters.nats.connection import NatsConnection
from shared.domain.errors import Permanent, Refused, TooLarge, Transient, Unusable

API: Final = "$JS.API."
SECOND_NS: Final = 1_000_000_000

STREAM_NOT_FOUND: Final = 10059
STREAM_DIFFERS: Final = 10058
NO_MESSAGE: Final = 10037
_STORE_FAILED: Final = 10077
_NEVER: Final = frozenset({10052, 10074})
"""Values of `err_code` for which a retry cannot help: invalid configuration, and replicas on a single server."""
_TOO_LARGE: Final = 10054
NO_RESOURCES: Final = frozenset({10023, 10028, 10047})
_NOT_ENABLED: Final = frozenset({10039, 10076})
_NOT_YET: Final = frozenset({10005, 10014, STREAM_NOT_FOUND})
"""Values of `err_code` for which a retry may help: no peers for placement, no such consumer, no such stream."""
_OCCUPIED: Final = "maximum messages per subject exceeded"
_FULL: Final = ("maximum messages exceeded", "maximum bytes exceeded", _OCCUPIED)


class ApiError(msgspec.Struct, frozen=True):
    """An error that the JetStream API returned: an HTTP-like code, JetStream's error code, and a description."""

    code: int = 500
    err_code: int = 0
    description: str = ""

    @property
    def occupied(self) -> bool:
        """True if the message was refused because its subject has its maximum number of messages.

        The description is compared too, because the error code 10077 also means other failures.
        """
        return self.err_code == _STORE_FAILED and self.description == _OCCUPIED

    @property
    def unstored(self) -> bool:
        """True if the stream could not write the message, for example because the disk is full.

        False if the stream refused the message because it has reached a limit.
        """
        return self.err_code == _STORE_FAILED and self.description not in _FULL


class _Answer(msgspec.Struct, frozen=True):
    error: ApiError | None = None
    seq: int = 0


_answer = msgspec.json.Decoder(_Answer)


class MessageOrigin(NamedTuple):
    """The metadata of a delivered message: its consumer, delivery, sequences and times. `origin_of` reads it.

    - `delivery`: how many times the message has been delivered, 1 for the first time.
    - `sequence`: its sequence in the stream. `at_ns`: when it was stored (Unix ns).
    - `consumer_sequence` counts the consumer's deliveries from 1 without a gap.
    - `pending`: the number of messages that the consumer has still to deliver.
    """

    consumer: str
    delivery: int
    sequence: int
    consumer_sequence: int
    at_ns: int
    pending: int


def origin_of(ack_subject: str) -> MessageOrigin:
    """Parse the acknowledgement subject of a delivered message. Raise ValueError if it is no such subject.

    Its form is `$JS.ACK.[domain.account.]stream.consumer.delivery.sequence.consumer sequence.time.pending[.random]`.
    """
    tokens = ack_subject.split(".")
    if len(tokens) >= 11:
        tokens = tokens[2:]
    if len(tokens) < 9:
        raise ValueError(f"{ack_subject!r} is no acknowledgement subject")
    return MessageOrigin(tokens[3], int(tokens[4]), int(tokens[5]), int(tokens[6]), int(tokens[7]), int(tokens[8]))


def unix_ns(text: str) -> int:
    """Convert an RFC 3339 time with up to nine fractional digits to Unix nanoseconds, without rounding."""
    end = 19
    fraction = 0
    if text[end : end + 1] == ".":
        digits = len(text) - len(text[end + 1 :].lstrip("0123456789"))
        fraction = int(text[end + 1 : digits][:9].ljust(9, "0"))
        end = digits
    whole = datetime.fromisoformat(text[:19] + text[end:].replace("Z", "+00:00"))
    if whole.tzinfo is None:
        whole = whole.replace(tzinfo=UTC)
    return int(whole.timestamp()) * SECOND_NS + fraction


def text_of(at_ns: int) -> str:
    """Convert Unix nanoseconds to an RFC 3339 time in UTC, without rounding."""
    seconds, fraction = divmod(at_ns, SECOND_NS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"


def failure(error: ApiError, what: str) -> Exception:
    """Return the exception to raise for a server's error. `what` names the failed call in the message.

    - Refused: the stream or the storage is full.
    - Unusable: JetStream is disabled.
    - TooLarge, Permanent: a retry cannot help.
    - Transient: a retry may help.
    """
    text = f"{what}: {error.description} ({error.err_code})"
    if error.err_code == _STORE_FAILED and error.description in _FULL:
        return Refused(text)
    if error.err_code in NO_RESOURCES:
        return Refused(f"{text}: the broker's storage limits are used up")
    if error.err_code in _NOT_ENABLED:
        return Unusable(f"{text}: JetStream is off; is the broker's disk full, or was it started without JetStream?")
    if error.err_code == _TOO_LARGE:
        return TooLarge(text)
    if error.err_code in _NEVER:
        return Permanent(text)
    if error.err_code in _NOT_YET or error.code >= 500:
        return Transient(text)
    return Permanent(text)


async def call(
    connection: NatsConnection, verb: str, body: object, wait_s: float, *, line: int | None = None
) -> dict[str, Any] | ApiError:
    """Call the JetStream API, and return the answer or the server's error.

    - `verb`: the end of the API's subject, such as `STREAM.INFO.REPORTS`. `body` is sent as JSON.
    - `line`: an earlier value of `connection.line`. If the connection has broken since, raise Transient and send
      nothing. None: send the call in any case.

    Raise Transient if no answer comes within `wait_s` seconds.
    """
    data = b"" if body is None else msgspec.json.encode(body)
    message = await connection.request(API + verb, data, wait_s, line=line)
    answer: dict[str, Any] = msgspec.json.decode(message.data)
    if "error" in answer:
        return msgspec.convert(answer["error"], ApiError)
    return answer


async def demand(
    connection: NatsConnection, verb: str, body: object, wait_s: float, *, line: int | None = None
) -> dict[str, Any]:
    """Call the JetStream API and return the answer.

    - `verb`: the end of the API's subject, such as `STREAM.INFO.REPORTS`. `body` is sent as JSON.
    - `line`: an earlier value of `connection.line`. If the connection has broken since, raise Transient and send
      nothing. None: send the call in any case.

    Raise Transient if no answer comes within `wait_s` seconds. If the server returns an error, raise the exception to
    which the function `failure` converts it.
    """
    answer = await call(connection, verb, body, wait_s, line=line)
    if isinstance(answer, ApiError):
        raise failure(answer, verb)
    return answer


async def store(
    connection: NatsConnection, subject: str, data: bytes, wait_s: float, headers: dict[str, str] | None = None
) -> int | ApiError:
    """Publish a message on a subject of a stream, and wait until it is stored.

    Return its sequence or the server's error. Raise Transient if the server does not answer within `wait_s` seconds.
    The message may have been stored then.
    """
    message = await connection.request(subject, data, wait_s, headers)
    try:
        answer = _answer.decode(message.data)
    except msgspec.MsgspecError as error:
        raise Transient(f"the answer to a publish on {subject} is not a stream's: {error}") from error
    return answer.seq if answer.error is None else answer.error
