"""`orb replay`: print the shell commands that show a crawl's archive in pywb, a program for replaying web archives."""

import argparse
import json
import shlex
import shutil
from pathlib import Path

from cli.local.crawl_folder import CrawlFolder, running
from cli.terminal.exits import Exit, Usage
from cli.terminal.progress import say
from shared.adapters.sql.catalog.crawl_reader import CrawlReader
from shared.domain.crawl.spec import decode_spec

_PORT = 8080
_LAST_PORT = 65535


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", type=Path, metavar="DIR", help="the crawl's folder")
    parser.add_argument("--port", type=_port, default=_PORT, metavar="N", help="the port of pywb (default %(default)s)")


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: give a number from 1 to {_LAST_PORT}")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    folder = CrawlFolder(arguments.dir).opened()
    if not folder.index.is_file():
        wait = "is at work, and" if running(folder) else "did not end its run, so it"
        raise Usage(f"{folder.path} has no index to replay: the crawl {wait} writes {folder.index.name} at its end.")
    reader = CrawlReader(folder.database)
    try:
        row = reader.crawl()
    finally:
        reader.close()
    if row is None:
        raise Usage(f"{folder.path} has no crawl results yet.")
    wayback = shutil.which("wayback")
    if wayback is None:
        say("pywb is not installed here. It needs an environment of its own, for example: pipx install pywb")
    archive = folder.archive.resolve()
    collection = {"index_paths": str(archive / folder.index.name), "archive_paths": f"{archive}/"}
    # JSON is YAML, too.
    config, file = json.dumps({"collections": {row.name: collection}}), f"{row.name}.pywb.yaml"
    print(f"printf '%s\\n' {shlex.quote(config)} > {shlex.quote(file)}")
    start = f"{shlex.quote(wayback or 'wayback')} --bind 127.0.0.1 --port {arguments.port}"
    print(f"PYWB_CONFIG_FILE={shlex.quote(file)} {start}")
    seed = decode_spec(row.spec).seeds[0].url
    say(f"then open http://localhost:{arguments.port}/{row.name}/{seed}")
    return Exit.OK
