"""Every example of README and docs is run in order, on one small site and one cluster, and does what its page shows.

What cannot run here is in `doc_examples.LISTED` with the reason (tests/unit/test_docs_examples.py).
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.support import doc_examples
from tests.support.doc_examples import FILES, LISTED, OUTPUTS, Block, entry
from tests.support.processes.orb_command import ROOT
from tests.support.processes.up_process import UpProcess, upped
from tests.support.web.file_site import FileTree
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.long]

Served = Callable[..., Web]
SOMETIMES: Final = ("API key:", "orb: crawl site: is running")
"""Lines that a page shows and that a test does not see: a prompt of a terminal, a crawl that is not finished yet."""

READS: Final = ("orb ctl get ", "orb ctl logs ")
LOOKS: Final = 10

HOVER: Final = """\
seeds: [https://example.org/]
extract: {items: [{name: product, fields: {price: {css: "a:hover"}}}]}"""


@dataclass
class Reader:
    """A person who works through the pages, in one folder and one shell after the other."""

    folder: Path
    up: UpProcess
    web: Web
    port: int
    said: str = ""
    ran: list[str] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def here(self, text: str) -> str:
        """The example as it is run: its hosts, ports and folders are those of the test."""
        sites, masters = self.web.origins, self.up.facts["api"]
        for name, place in (
            ("./orb ", "orb "),
            ("https://example.org/", f"{sites[0]}/"),
            ("https://docs.example.org/", f"{sites[0]}/"),
            ("https://example.com/", f"{sites[1]}/"),
            ("http://127.0.0.1:8081", masters[0]),
            ("http://127.0.0.1:8082", masters[1]),
            ("127.0.0.1:8765", f"127.0.0.1:{self.port}"),
            ("http.server 8765", f"http.server {self.port}"),
            ("ORB_API_KEY=orb_...", f"ORB_API_KEY={self.up.key}"),
            ('"spec": {', '"spec": {"egress": {"allow": ["127.0.0.0/8"]}, "politeness": {"delay_s": 0}, '),
            ("/backups/2026-11-20", "backup"),
            ("--database postgresql://orb@db/orb --nats nats://nats:4222 --etcd http://etcd:2379", "--dir orb.cluster"),
            ("--database postgresql://orb@db2/orb --nats nats://nats2:4222 --etcd http://etcd2:2379", "--dir restored"),
            ("/var/lib/orb/cluster.db --to postgresql://orb@db/orb", "orb.cluster/cluster.db --to copy.db"),
        ):
            text = text.replace(name, place)
        return text

    def declared(self, text: str) -> str:
        """A spec as it is crawled here: its site is on loopback, and needs no rest between requests."""
        lines = []
        for line in self.here(text).split("\n"):
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(line)
            if line.lstrip().startswith("seeds:"):
                lines.append(f"{indent}egress: {{allow: [127.0.0.0/8]}}")
                if "politeness:" not in text:
                    lines.append(f"{indent}politeness: {{delay_s: 0}}")
        return "\n".join(lines)

    def shell(self, text: str, *, code: int = 0, place: str) -> None:
        """Run it as one script that ends at its first error; `said` is what it wrote."""
        self.ran.append(text)
        output = self.folder / "output"
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-e", "-o", "pipefail", "-c", self.here(text)],
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            assert process.stdin is not None
            process.stdin.write(f"{self.up.key}\n".encode())  # what a person types at a prompt
            with suppress(BrokenPipeError):
                process.stdin.close()
        self.groups.append(process.pid)
        ended = process.wait(240)
        self.said = output.read_text("utf-8", "replace").replace(self.web.origins[0], "https://example.org")
        if ended != code:
            self.wrong.append(f"{place} ended with {ended} and not {code}:\n{text}\n{self.said}")

    def environment(self) -> dict[str, str]:
        home = self.folder / "home"
        return {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "ORB_API_KEY": str(self.up.key),
            "ORB_SERVER": self.up.address,
            "no_proxy": "*",
        }

    def end(self) -> None:
        """End what the examples started in the background."""
        for group in self.groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


@pytest.fixture
def reader(tmp_path: Path, web: Served) -> Iterator[Reader]:
    """The site, the folder and the cluster that README's `./orb up` starts."""
    for program in ("bash", "curl"):
        if shutil.which(program) is None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{program} is not installed")
    site, other = tmp_path / "site", tmp_path / "other"
    for folder in (site, other, tmp_path / "bin", tmp_path / "home" / ".zfunc"):
        folder.mkdir(parents=True)
    (tmp_path / "home" / ".config" / "fish" / "completions").mkdir(parents=True)
    links = ("page.html", "missing1.html", "missing2.html")
    (site / "index.html").write_text("<title>Start</title>" + "".join(f"<a href={link}>x</a>" for link in links))
    (site / "page.html").write_text("<title>A page</title>")
    (other / "index.html").write_text("<title>Other</title>")
    tool(tmp_path / "bin" / "orb", ORB)
    tool(tmp_path / "bin" / "curl", CURL.format(curl=shutil.which("curl")))
    served = web(FileTree(str(site)), FileTree(str(other)))
    with upped(tmp_path / "orb.cluster") as up:
        reader = Reader(tmp_path, up, served, free_port())
        try:
            yield reader
        finally:
            reader.end()


ORB: Final = f"""\
export PYTHONPATH={ROOT}
if [ "$1" = crawl ]; then set -- "$@" --allow-net 127.0.0.0/8 --delay 0 --no-progress; fi
exec {sys.executable} -m orb "$@"
"""
CURL: Final = """\
case " $* " in
*" -N "*) timeout 3 {curl} --fail-with-body "$@"; test $? = 124 ;;
*) exec {curl} --fail-with-body "$@" ;;
esac"""
"""An answer of 400 or more is an error, and of a stream, which has no end, a person reads three seconds."""


def tool(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def free_port() -> int:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


def test_every_example_of_the_documentation_does_what_its_page_shows(reader: Reader) -> None:
    for page in doc_examples.pages():
        found = doc_examples.blocks(page)
        for block in found:
            if key := entry(FILES, block, block.text):
                doc_examples.written(reader.folder, FILES[key], reader.declared(block.text))
        doc_examples.written(reader.folder, "hover.yaml", reader.declared(HOVER))
        for block in found:
            if key := entry(OUTPUTS, block, block.text):
                if OUTPUTS[key] not in reader.ran[-1]:
                    reader.shell(OUTPUTS[key], code=2, place=block.place)
                for line in block.text.split("\n"):  # the order may be that of made-up ids
                    shows(reader, line, block)
            elif block.text.startswith("$ ") and not entry(LISTED, block, block.text):
                for command, shown in doc_examples.spoken(block.text):
                    asks(reader, command, shown, block)
            elif doc_examples.scripted(block):
                runs(reader, block)
    copied_when_stopped(reader)
    assert not reader.wrong, "\n\n".join(reader.wrong)


def asks(reader: Reader, command: str, shown: str, block: Block) -> None:
    """Run a command and compare its output. What only reads is asked again, until what comes by and by is there."""
    for _ in range(LOOKS if command.startswith(READS) else 0):
        reader.shell(command, place=block.place)
        if not doc_examples.missing(shown, reader.said):
            return
        time.sleep(1)
    reader.shell(command, place=block.place)
    shows(reader, shown, block)


def shows(reader: Reader, shown: str, block: Block) -> None:
    """The page shows what the command before wrote."""
    lines = [line for line in shown.split("\n") if line not in SOMETIMES]
    gone = doc_examples.missing("\n".join(lines), reader.said)
    if gone:
        reader.wrong.append(f"{block.place}: the output has no {gone}:\n{reader.said}")


def runs(reader: Reader, block: Block) -> None:
    """Run a block of shell, without the commands that are listed."""
    if "<<" in block.text:
        reader.shell(block.text, place=block.place)
        return
    script, _ = doc_examples.remaining(block)
    if script == ["./orb up"]:  # the cluster that all pages share
        return
    if script and script[0].startswith("orb db copy"):
        reader.shell(script[0], code=4, place=block.place)
        assert "orb.cluster/cluster.db is in use" in reader.said
        assert not (reader.folder / "copy.db").exists()
    elif script:
        reader.shell("\n".join(script), place=block.place)


def copied_when_stopped(reader: Reader) -> None:
    """docs/operations.md: first stop all masters, then copy."""
    assert reader.up.interrupted() == 0
    command = next(text for text in reader.ran if text.startswith("orb db copy"))
    reader.shell(command, place="docs/operations.md, with the cluster stopped")
    reader.shell("orb db check --database copy.db", place="the copy")
