"""Behaviours as a site: the host with number n answers for behaviour n, and the last host is the bystander."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from html import escape

import msgspec

from tests.support.behaviours.behaviour import REASONS, Answer, Behaviour
from tests.support.web.http_server import RawReply, Request, Respond


class BehaviourSite(msgspec.Struct, frozen=True, tag=True):
    """Every behaviour on a host of its own, beside the bystander."""

    behaviours: tuple[Behaviour, ...]
    hosts: int

    @classmethod
    def of(cls, behaviours: Iterable[Behaviour]) -> "BehaviourSite":
        """Return the site of `behaviours`, in their order."""
        given = tuple(behaviours)
        return cls(given, len(given) + 1)

    def open(self, origins: Sequence[str]) -> Respond:
        """Return the function that answers for this site."""
        asked: Counter[tuple[int, str]] = Counter()

        def respond(request: Request) -> RawReply:
            number, target = request.host, request.target
            answer, idle_s = Answer(404), 0.0
            if number < len(self.behaviours):
                answer = answer_to(self.behaviours[number], target, asked[number, target])
                idle_s = self.behaviours[number].idle_s
            asked[number, target] += 1
            sent = _sent(answer, origins[number], origins[-1])
            return RawReply(answer.status, sent, reset=answer.reset, keeps=answer.framed, idle_s=idle_s)

        return respond


def answer_to(behaviour: Behaviour, target: str, number: int) -> Answer:
    """Return the answer to request `number` (from 0) for `target`, which may be a URL."""
    if "://" in target:
        target = "/" + target.split("/", 3)[3]
    answers = behaviour.site.get(target)
    if answers is not None:
        return answers[min(number, len(answers) - 1)]
    if target == "/robots.txt":
        return Answer(404)
    return Answer(body=f"<title>{escape(target)}</title>a page of {behaviour.name}".encode())


def filled(text: bytes, origin: str, bystander: str) -> bytes:
    """Return `text` with its placeholders filled in for the host at `origin`."""
    if b"{" not in text:
        return text
    ip, _, port = origin.removeprefix("http://").partition(":")
    number = int.from_bytes(bytes(map(int, ip.split("."))))
    values = {"origin": origin, "ip": ip, "port": port, "decimal": str(number), "bystander": bystander}
    for name, value in values.items():
        text = text.replace(b"{%s}" % name.encode(), value.encode())
    return text


async def _sent(answer: Answer, origin: str, bystander: str) -> AsyncIterator[bytes]:
    body = filled(answer.body, origin, bystander)
    fields = [filled(line.encode("latin-1"), origin, bystander) for line in answer.headers]
    if answer.framed and answer.status not in (204, 304):
        fields.append(b"Content-Length: %d" % len(body))
    if not answer.framed:
        fields.append(b"Connection: close")
    if not answer.status:
        return
    status = f"{answer.version} {answer.status} {REASONS.get(answer.status, 'Unknown')}".encode()
    lines = body.splitlines(keepends=True) if answer.drip_s else [body]
    yield answer.before + b"\r\n".join([status, *fields, b"", b""]) + b"".join(lines[:1])
    for line in lines[1:]:
        await asyncio.sleep(answer.drip_s)
        yield line
