"""One connection to NATS that reconnects for ever, with one inbox (a subject for answers) for all requests.

The inbox begins with the name of the process. So a server can prevent other processes from reading the answers.

The client library's own request and pull calls are not used. They leave futures that never complete if the server dies,
may lose a cancellation while flushing, and need several tasks per call. Here a request is one published message and one
future. If the connection breaks, every open request fails at once.

Nothing is buffered while the server is away: a publish then raises Transient. Only a message that was published just
as the connection broke may still be sent after the reconnect. It is harmless, even if its sender has repeated it.
"""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError, SlowConsumerError

from shared.adapters.nats.client import PlainClient, SecureClient, demanded
from shared.adapters.nats.settings import NatsLogin, StreamSettings
from shared.domain.errors import Permanent, TooLarge, Transient, Unusable
from shared.tls import TlsSettings
from shared.wire import subjects

log = structlog.get_logger(__name__)

_ACK_SUBJECT: Final = "$JS.ACK."
_NO_RESPONDERS: Final = "503"
_HEADER_LINE: Final = len(b"NATS/1.0\r\n\r\n")
_HEADER_SEPARATORS: Final = len(b": \r\n")
_PING_S: Final = 10
_CLOSE_S: Final = 2.0

_DENIED: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')
"""Matches the error text for a denied publish or subscription. The client library converts it to lower case."""
DENIED_S: Final = 5.0
"""The seconds after which a caller may repeat a denied request. The server's permissions may have changed by then."""
_DENIALS_S: Final = 60.0
"""The least number of seconds between two log lines about denials.

In a denial, the server does not permit this process to publish or subscribe on a subject.
"""


def status_of(message: Msg) -> str | None:
    """Return the status code of a message that the NATS server itself sent, such as `404` or `408` (a timeout).

    Return None for messages of other senders.
    """
    if message.data or message.headers is None or message.reply.startswith(_ACK_SUBJECT):
        return None
    return message.headers.get("Status")


def reason_of(message: Msg) -> str:
    """Return the server's description beside the status code of a message, such as `Request Timeout`.

    Return an empty string if the message has none.
    """
    return (message.headers or {}).get("Description", "").partition("\n")[0].strip()


class Unanswered(Transient):
    """The broker did not answer in time, although this process was connected to it."""


class Denied(Transient):
    """The server does not permit this process to publish on a subject.

    The call may be retried after the permissions are changed.
    """

    def __init__(self, subject: str) -> None:
        super().__init__(f"NATS does not permit this process to publish on {subject}", retry_in=DENIED_S)


class _Question(NamedTuple):
    """A request that is not answered yet: its subject, and the future for its answer."""

    subject: str
    answer: asyncio.Future[Any]


class NatsConnection:
    """Requests, messages and subscriptions over one connection to NATS that reconnects by itself.

    Errors of its methods:
    - Transient: the broker is away.
    - TooLarge: the message exceeds the broker's size limit.
    - Denied: the server does not permit a request on this subject. The denial of another message is only logged.
    - Unusable: the broker has closed the connection for good (revoked credentials, a protocol error).
    """

    def __init__(self, client: PlainClient, settings: StreamSettings, name: str) -> None:
        self._client = client
        self._settings = settings
        self._inbox = subjects.inbox(name)
        self._prefix = f"{self.new_inbox()}."
        self._tokens = 0
        self._questions: dict[str, _Question] = {}
        self._denials = 0
        self._denials_logged_at = -_DENIALS_S
        self._unusable = ""
        self._name = name
        self._watchers: set[Callable[[], None]] = set()
        self._subscription: Subscription | None = None
        self._closing = False
        self._line = 0
        self._refusal: asyncio.Future[str] | None = None
        self._last_error = "no answer"

    @classmethod
    async def open(
        cls,
        urls: Sequence[str],
        *,
        login: NatsLogin | None = None,
        name: str,
        settings: StreamSettings,
        tls: TlsSettings | None = None,
    ) -> "NatsConnection":
        """Connect to one of `urls` within `settings.connect_s` seconds.

        TLS is used if `tls` is given or a URL begins with `tls://`.

        - `login`: the user and password, or token. None: the URL or a client certificate identifies this process.
        - `name`: the name under which this process receives answers.

        Raise Unusable if the server refuses `login` or the files of `tls` cannot be used. Raise Transient if no server
        answers.
        """
        files = demanded(urls, tls)
        self = cls(PlainClient() if files is None else SecureClient(files), settings, name)
        loop = asyncio.get_running_loop()
        self._refusal = loop.create_future()
        connecting = loop.create_task(self._connect(urls, login or NatsLogin(), name), name="broker.connect")
        try:
            either: set[asyncio.Future[Any]] = {connecting, self._refusal}
            await asyncio.wait(either, timeout=settings.connect_s, return_when=asyncio.FIRST_COMPLETED)
            if connecting.done():
                await connecting
                self._subscription = await self._client.subscribe(f"{self._prefix}*", cb=self._answered)
                return self
            if self._refusal.done():
                raise Unusable(
                    f"the broker at {', '.join(urls)} refused us: {self._refusal.result()}; check"
                    " nats_user and nats_password, or nats_token"
                )
            raise Transient(f"no broker at {', '.join(urls)} within {settings.connect_s:g} s: {self._last_error}")
        except NatsError as error:
            raise Unusable(f"cannot connect to the broker at {', '.join(urls)}: {error}") from error
        except OSError as error:
            raise Transient(f"the connection to the broker at {', '.join(urls)} broke: {error}") from error
        finally:
            self._refusal = None
            if self._subscription is None:
                self._closing = True
                connecting.cancel()  # If it has not begun, the client has no record of it.
                await self._client.close()
                if connecting.done() and not connecting.cancelled() and (late := connecting.exception()) is not None:
                    log.debug("broker_attempt.failed", error=str(late))

    async def _connect(self, urls: Sequence[str], login: NatsLogin, name: str) -> None:
        await self._client.connect(
            list(urls),
            name=name,
            user=login.user,
            password=login.password,
            token=login.token,
            error_cb=self._failed,
            disconnected_cb=self._disconnected,
            reconnected_cb=self._reconnected,
            closed_cb=self._closed,
            max_reconnect_attempts=-1,
            reconnect_time_wait=self._settings.reconnect_s,
            ping_interval=_PING_S,
            pending_size=0,
        )

    # --- questions ----------------------------------------------------------------------------------------------------

    @property
    def line(self) -> int:
        """A number that identifies the current connection to a server. It increases each time a connection breaks."""
        return self._line

    async def request(
        self,
        subject: str,
        data: bytes,
        wait_s: float,
        headers: Mapping[str, str] | None = None,
        *,
        line: int | None = None,
    ) -> Msg:
        """Send a request and return its answer. Wait for it at most `wait_s` seconds.

        Raise Transient at once if there is no subscriber or the connection breaks.

        `line`: send the request only over the connection with this number, which the caller has read from the property
        `line`. If that connection has broken since, raise Transient and send nothing. None: send the request over the
        present connection.
        """
        if line is not None and line != self._line:
            raise Transient("the connection to the broker is another one by now", retry_in=self._settings.reconnect_s)
        async with self._expecting(subject, wait_s) as (token, answer):
            await self.send(subject, data, reply=self._prefix + token, headers=headers)
            message: Msg = await answer
        if status_of(message) == _NO_RESPONDERS:
            raise Transient(f"no subscriber on {subject}", retry_in=0.5)
        return message

    async def confirm(self) -> None:
        """Wait until the server has processed everything that this process has sent so far, including subscriptions.

        The server's errors about these messages and subscriptions arrive before the call returns.
        """
        self._require_connected()
        async with self._expecting("", self._settings.answer_s) as (_, answer):
            try:
                await self._client.ping(answer)
            except (NatsError, OSError) as error:
                raise Transient(f"cannot send a ping: {error}") from error
            await answer

    @asynccontextmanager
    async def _expecting(self, subject: str, wait_s: float) -> AsyncIterator[tuple[str, asyncio.Future[Any]]]:
        """Register a request for the `with` block. Yield a token and a future.

        - The token is the last part of the subject for the answer. It identifies the request.
        - The future receives the answer. It fails after `wait_s` seconds, or when the connection breaks.
        - `subject`: the subject of the request, empty for a PING.
        """
        self._tokens += 1
        token = format(self._tokens, "x")
        loop = asyncio.get_running_loop()
        question = self._questions[token] = _Question(subject, loop.create_future())
        timer = loop.call_later(wait_s, _give_up, question, wait_s)
        try:
            yield token, question.answer
        finally:
            timer.cancel()
            del self._questions[token]

    async def send(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Publish a message without waiting for an answer. `reply` is the subject to which a receiver may answer.

        Raise Transient if the broker is away, or if too many bytes are still unsent.
        """
        self._require_connected()
        if self._client.pending_data_size > self._settings.unsent_bytes:
            raise Transient("the broker reads more slowly than we write")
        # Count the headers here: the server closes the connection of a client that sends more.
        size = len(data) + (_header_size(headers) if headers else 0)
        if size > self.max_payload:
            raise TooLarge(f"a message of {size} bytes for {subject} exceeds the broker's limit of {self.max_payload}")
        try:
            await self._client.publish(subject, data, reply, dict(headers) if headers else None)
        except MaxPayloadError as error:
            raise TooLarge(f"a message of {size} bytes for {subject} exceeds the broker's limit") from error
        except (NatsError, OSError) as error:
            raise Transient(f"cannot publish on {subject}: {error}") from error

    def _require_connected(self) -> None:
        if self._unusable:
            raise Unusable(self._unusable)
        if not self._client.is_connected or self._closing:
            raise self._away()

    @property
    def max_payload(self) -> int:
        """The largest number of bytes that the broker accepts in one message, headers included."""
        return self._client.max_payload

    # --- subscriptions ------------------------------------------------------------------------------------

    def new_inbox(self) -> str:
        """Return a new unique prefix of subjects, such as `A`, for the answers to requests.

        The caller subscribes to `A.*`. The caller gives each request its own reply subject: `A.1`, `A.2` and so on.
        """
        # The server answers a pull with stored messages and a status message. It delivers both to the reply subject.
        # But a stored message shows the subject on which it was first published. Only the status message shows the
        # reply subject.
        return f"{self._inbox}.{secrets.token_hex(11)}"

    def watch(self, lost: Callable[[], None]) -> None:
        """Call `lost` each time the connection breaks, until `unwatch` is called with the same function."""
        self._watchers.add(lost)

    def unwatch(self, lost: Callable[[], None]) -> None:
        """Do not call `lost` any more when the connection breaks. This undoes `watch`, if it was called."""
        self._watchers.discard(lost)

    async def subscribe(self, subject: str, receive: Callable[[Msg], Awaitable[None]]) -> Subscription:
        """Call `receive` with each message on `subject` until `unsubscribe`.

        Return the subscription, which survives reconnects.
        """
        if self._client.is_closed:
            raise self._away()
        try:
            return await self._client.subscribe(subject, cb=receive)
        except OSError as error:
            raise Transient(f"cannot subscribe to {subject}: {error}") from error
        except NatsError as error:
            raise Permanent(f"cannot subscribe to {subject}: {error}") from error

    async def unsubscribe(self, subscription: Subscription, *, drain: bool = False) -> None:
        """End a subscription. Do nothing if the connection is closed.

        With `drain`, first receive the messages that the server has already sent, for at most two seconds.
        """
        if self._client.is_closed:
            return
        try:
            if drain and self._client.is_connected:
                await asyncio.wait_for(subscription.drain(), _CLOSE_S)  # type: ignore[no-untyped-call]  # says no types
            else:
                await subscription.unsubscribe()
        except (NatsError, OSError) as error:  # a TimeoutError is an OSError
            log.debug("unsubscribe.interrupted", subject=subscription.subject, error=str(error))

    async def close(self) -> None:
        """Close the connection for good. Every open request raises Transient."""
        if not self._closing:
            self._closing = True
            self._break("the connection was closed")
            await self._client.close()

    # --- what the client calls ----------------------------------------------------------------------------------------

    async def _answered(self, message: Msg) -> None:
        question = self._questions.get(message.subject[len(self._prefix) :])
        if question is not None and not question.answer.done():
            question.answer.set_result(message)

    async def _failed(self, error: Exception) -> None:
        self._last_error = str(error) or type(error).__name__
        if isinstance(error, SlowConsumerError):
            log.warning("broker_message.dropped", subject=error.subject)
            return
        if (denied := _DENIED.search(self._last_error)) is not None:
            self._denied(*denied.groups())
            return
        log.debug("broker_connection.failed", error=self._last_error)
        refused = "authorization" in self._last_error.lower()
        if refused and self._refusal is not None and not self._refusal.done():
            self._refusal.set_result(self._last_error)

    def _denied(self, operation: str, subject: str) -> None:
        """Fail the open requests on `subject`, because the server denied `operation` on it.

        Log denials at most once a minute.

        - `operation`: "publish" or "subscription". If the subscription to the inbox is denied, all open requests and
          all later calls fail with Unusable.
        - `subject`: in lower case, as in the server's message.
        """
        if operation == "subscription" and subject == f"{self._prefix}*".lower():
            self._unusable = f"the broker permits no answers to {self._name}: is nats_user that of another process?"
        for question in self._questions.values():
            if self._unusable and not question.answer.done():
                question.answer.set_exception(Unusable(self._unusable))
            elif operation == "publish" and question.subject.lower() == subject and not question.answer.done():
                subject = question.subject
                question.answer.set_exception(Denied(subject))
        self._denials += 1
        now = asyncio.get_running_loop().time()
        if now - self._denials_logged_at >= _DENIALS_S:
            log.error("broker_permission.denied", operation=operation, subject=subject, denials=self._denials)
            self._denials, self._denials_logged_at = 0, now

    async def _disconnected(self) -> None:
        if not self._closing:
            log.warning("broker.disconnected", error=self._last_error)
        self._break("the connection to the broker broke")

    async def _reconnected(self) -> None:
        log.info("broker.reconnected")

    async def _closed(self) -> None:
        if not self._closing:
            log.error("broker.closed", error=self._last_error)

    def _break(self, reason: str) -> None:
        self._line += 1
        for _, answer in self._questions.values():
            if not answer.done():
                answer.set_exception(Transient(reason, retry_in=self._settings.reconnect_s))
        for lost in list(self._watchers):
            lost()

    def _away(self) -> Exception:
        if self._client.is_closed and not self._closing:
            return Unusable(f"the broker closed the connection: {self._client.last_error or self._last_error}")
        return Transient("not connected to the broker", retry_in=max(self._settings.reconnect_s, 0.1))

    def __repr__(self) -> str:
        state = "closed" if self._client.is_closed else "connected" if self._client.is_connected else "away"
        return f"<Connection {state} questions={len(self._questions)}>"


def _give_up(question: _Question, waited_s: float) -> None:
    if not question.answer.done():
        place = f"on {question.subject}" if question.subject else "to a ping"
        question.answer.set_exception(Unanswered(f"no answer {place} within {waited_s:g} s"))


def _header_size(headers: Mapping[str, str]) -> int:
    return _HEADER_LINE + sum(len(k) + len(v.encode()) + _HEADER_SEPARATORS for k, v in headers.items())
