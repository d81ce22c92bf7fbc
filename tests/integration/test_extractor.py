"""Pages are taken apart in a process that a hostile one may take down, and nothing else with it."""

import asyncio
import json
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from structlog.testing import capture_logs

from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.ids import CrawlId, Fingerprint
from workers.extract.extractor import Extractor, _Child
from workers.extract.page_rules import Html, PageRules
from workers.extract.rules import Extraction, ExtractionInput

EXTRACT = parse_spec(
    {"seeds": ["https://a.test/"], "extract": {"items": [{"name": "h", "fields": {"t": {"css": "h1"}}}]}}
).extract
RULES_OF_OTHERS = parse_spec(
    {
        "seeds": ["https://a.test/"],
        "extract": {"items": [{"name": "h", "when": "/p/[0-9]+$", "fields": {"t": {"css": "h1"}}}]},
    }
).extract
GOOD = b"<h1>good</h1>"
HOSTILE = {
    "nested": b"<div>" * 200_000,
    "unclosed formatting": b"".join(b"<b a=%d>" % n for n in range(40_000)) + b"<p>x" * 20_000,
    "one tag of many attributes": b"<a " + b" ".join(b"a%d=1" % n for n in range(200_000)) + b">",
}


async def asked(extractor: Extractor, body: bytes) -> Extraction:
    page = ExtractionInput(1, bytes(16), "https://a.test/", "utf-8", body)
    return await extractor.extract(page, EXTRACT.items, EXTRACT.item_limits())


def texts(extraction: Extraction) -> list[bytes]:
    return [item.data for item in extraction.items]


@asynccontextmanager
async def extracting(cpu_s: float = 20.0, memory_bytes: int = 1 << 30) -> AsyncIterator[Extractor]:
    extractor = Extractor(cpu_s=cpu_s, memory_bytes=memory_bytes)
    try:
        yield extractor
    finally:
        await extractor.close()
        assert extractor.pid is None


@pytest.mark.parametrize("name", HOSTILE)
def test_a_page_that_takes_too_much_gives_nothing_and_the_next_is_as_ever(name: str) -> None:
    async def story() -> None:
        async with extracting(cpu_s=0.3, memory_bytes=1 << 28) as extractor:
            assert texts(await asked(extractor, GOOD)) == [b'{"t":"good"}']
            hostile = await asked(extractor, HOSTILE[name])
            assert (hostile.items, hostile.refused) == ([], {"unreadable": 1})
            assert texts(await asked(extractor, GOOD)) == [b'{"t":"good"}']

    asyncio.run(story())


def test_page_in_an_encoding_of_windows_has_all_its_characters() -> None:
    async def story() -> None:
        async with extracting() as extractor:
            page = ExtractionInput(1, bytes(16), "https://a.test/", "whatwg_cp1252", b"<h1>\xe9\x81</h1>")
            found = await extractor.extract(page, EXTRACT.items, EXTRACT.item_limits())
            assert [json.loads(item.data) for item in found.items] == [{"t": "é\x81"}]

    asyncio.run(story())


def test_match_that_would_backtrack_without_end_costs_no_page_its_items() -> None:
    rule = {"name": "h", "fields": {"t": {"css": "h1"}, "m": {"css": "h1", "match": "(?:a|a)+$"}}}
    spec = parse_spec({"seeds": ["https://a.test/"], "extract": {"items": [rule]}})

    async def story() -> None:
        async with extracting(cpu_s=0.3) as extractor:
            page = ExtractionInput(1, bytes(16), "https://a.test/", "utf-8", b"<h1>" + b"a" * 60 + b"!</h1>")
            found = await extractor.extract(page, spec.extract.items, spec.extract.item_limits())
            assert found.refused == {}
            assert [json.loads(item.data)["m"] for item in found.items] == [None]

    asyncio.run(story())


def test_a_process_that_somebody_kills_costs_no_page_its_items() -> None:
    async def story() -> None:
        async with extracting() as extractor:
            await asked(extractor, GOOD)
            for _ in range(3):
                assert extractor.pid is not None
                os.kill(extractor.pid, signal.SIGKILL)
                assert texts(await asked(extractor, GOOD)) == [b'{"t":"good"}']

    asyncio.run(story())


def test_pages_asked_for_at_once_get_their_own_items() -> None:
    async def story() -> None:
        async with extracting() as extractor:
            bodies = [b"<h1>%d</h1>" % n for n in range(50)]
            found = await asyncio.gather(*(asked(extractor, body) for body in bodies))
            assert [texts(each) for each in found] == [[b'{"t":"%d"}' % n] for n in range(50)]

    asyncio.run(story())


def test_cancelled_in_the_middle_no_page_gets_the_items_of_another() -> None:
    async def story() -> None:
        async with extracting() as extractor:
            await asked(extractor, GOOD)
            for _ in range(5):
                asking = asyncio.ensure_future(asked(extractor, b"<h1>bad</h1>" + b"<p>x" * 50_000))
                await asyncio.sleep(0.005)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                assert texts(await asked(extractor, GOOD)) == [b'{"t":"good"}']

    asyncio.run(story())


def test_the_process_has_none_of_the_workers_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORB_NATS_TOKEN", "secret")
    monkeypatch.setenv("ORB_NATS_PASSWORD", "secret")

    async def story() -> None:
        async with extracting() as extractor:
            await asked(extractor, GOOD)
            assert b"secret" not in Path(f"/proc/{extractor.pid}/environ").read_bytes()

    asyncio.run(story())


def test_the_extractor_process_holds_nothing_but_what_it_is_given() -> None:
    async def story() -> None:
        async with extracting() as extractor:
            kept = [os.dup(0), *(each.fileno() for each in pair)]
            for descriptor in kept:
                os.set_inheritable(descriptor, True)
            assert texts(await asked(extractor, GOOD)) == [b'{"t":"good"}']
            process = Path(f"/proc/{extractor.pid}")
            held = {int(entry.name): os.readlink(entry) for entry in (process / "fd").iterdir()}
            assert set(held) == {0, 1, 2}
            assert held[0] == held[1]
            assert held[2] == os.readlink("/proc/self/fd/2")
            assert extractor.pid is not None
            assert os.getsid(extractor.pid) == extractor.pid
            os.close(kept[0])

    pair = socket.socketpair()
    with pair[0], pair[1]:
        uvloop.run(story())


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no filter is known for this machine")
def test_the_extractor_process_gives_up_sockets_and_programs() -> None:
    async def story() -> None:
        async with extracting() as extractor:
            await asked(extractor, GOOD)
            lines = Path(f"/proc/{extractor.pid}/status").read_text().splitlines()
            status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")

    asyncio.run(story())
    program = """
import os, socket, subprocess
from workers.extract.sandbox import confine
assert confine() is None
for act in (socket.socket, socket.socketpair, lambda: os.execv("/bin/true", ["true"]), lambda: subprocess.run("true")):
    try:
        act()
    except PermissionError:
        continue
    raise SystemExit(f"{act} was possible")
os.listdir("/")
"""
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], check=True, timeout=60)


def test_an_extractor_process_that_cannot_be_confined_says_why_once() -> None:
    async def story() -> None:
        async with extracting() as extractor:
            with capture_logs() as logs:
                for _ in range(2):
                    child = _Child(*(cast(Any, None),) * 3)
                    extractor._greeted(child, "no filter here")
                    assert child.greeted
            assert [(entry["event"], entry["reason"]) for entry in logs] == [("extractor.unconfined", "no filter here")]

    asyncio.run(story())


def test_where_no_rule_is_about_a_page_there_is_no_process() -> None:
    async def story() -> None:
        async with extracting() as extractor:
            html = Html(GOOD, "utf-8", None)
            rules = PageRules(RULES_OF_OTHERS.items, RULES_OF_OTHERS.item_limits())
            for url, finds in (("https://a.test/x", False), ("https://a.test/p/1", True)):
                found = await rules.taken(extractor, CrawlId(1), url, Fingerprint(bytes(16)), html)
                assert (found is not None, extractor.pid is not None) == (finds, finds)

    asyncio.run(story())


def test_xhtml_page_with_an_empty_script_gives_its_items() -> None:
    async def story() -> None:
        async with extracting() as extractor:
            html = Html(b"<html><script src='x.js'/>" + GOOD + b"</html>", "utf-8", None, xml=True)
            rules = PageRules(EXTRACT.items, EXTRACT.item_limits())
            found = await rules.taken(extractor, CrawlId(1), "https://a.test/x", Fingerprint(bytes(16)), html)
            assert found is not None
            assert texts(found) == [b'{"t":"good"}']

    asyncio.run(story())
