"""The examples of the documentation: blocks of Markdown pages, and what of an output a page shows."""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cli.main import COMMANDS, parser_of
from tests.support.processes.orb_command import ROOT

_FENCE: Final = re.compile(r" {0,3}```(\w*)\s*$")
_INDENT: Final = "    "


@dataclass(frozen=True, slots=True)
class Block:
    """An example of a page, from this line on (counted from 1). `language`: as its fence names it, or empty."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def first(self) -> str:
        return self.text.split("\n", 1)[0].strip()


def pages() -> list[str]:
    """README and every page below docs, as paths in the tree. Pages that others build on come first."""
    first = ["README.md", "docs/command.md", "docs/ctl.md"]
    found = (path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return [*first, *sorted(page for page in found if page not in first)]


def blocks(page: str) -> list[Block]:
    """The fenced and the indented blocks of a page, in their order."""
    lines, found, at = (ROOT / page).read_text("utf-8").split("\n"), [], 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence:
            end = next(n for n in range(at + 1, len(lines)) if _FENCE.match(lines[n]))
            found.append(Block(page, at + 1, fence[1], "\n".join(lines[at + 1 : end])))
            at = end + 1
        elif lines[at].startswith(_INDENT) and (not at or not lines[at - 1].strip()):
            end = at
            while end < len(lines) and (lines[end].startswith(_INDENT) or not lines[end].strip()):
                end += 1
            found.append(Block(page, at + 1, "", "\n".join(line[4:] for line in lines[at:end]).rstrip()))
            at = end
        else:
            at += 1
    return found


def spoken(text: str) -> list[tuple[str, str]]:
    """The commands of a block that shows a terminal (`$ command`), each with the output that the page shows."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts[1:]]


def commands(text: str) -> list[str]:
    """The commands of a block of shell, those over several lines as one."""
    found: list[str] = []
    for line in text.split("\n"):
        if found and found[-1].endswith("\\"):
            found[-1] += f"\n{line}"
        elif line.strip():
            found.append(line)
    return found


def plain(line: str) -> str:
    """A line of output without what differs from run to run: numbers, times, column widths, made-up ids, the
    state that an event caught."""
    text = re.sub(r"\b[0-9a-f]{16,}\b", "ID", line)
    text = re.sub(r"\b\d+(?:\.\d+)? ?(?:[smhd]|[kMG]?i?B)\b", "N", text)
    text = re.sub(r"\d+(?:[.,:-]\d+)*", "N", text)
    text = re.sub(r"(?<=\s)-(?=\s|$)", "N", text)
    return re.sub(r"\s+", " ", re.sub(r"\bstate=\w+", "state=S", text)).strip()


def missing(shown: str, output: str) -> list[str]:
    """The lines that a page shows and that the output does not have in this order; `...` stands for anything."""
    left = iter([plain(line) for line in output.split("\n")])
    wanted = [plain(line) for line in shown.split("\n") if line.strip() and line.strip() != "..."]
    return [line for line in wanted if not any(_is(line, other) for other in left)]


def _is(shown: str, line: str) -> bool:
    return line.startswith(shown.removesuffix("...")) if shown.endswith("...") else line == shown


def unknown(command: str) -> list[str]:
    """What a command line of `orb` names that the program does not have: a command, a verb, a flag."""
    words = re.findall(r"[^\s\[\]|()`]+", command)
    words = words[words.index(next(word for word in words if word in ("orb", "./orb"))) + 1 :]
    if not words or words[0] in ("--help", "--version"):
        return []
    if words[0] not in COMMANDS:
        return [words[0]]
    parser = next(parser for name, parser in _members(parser_of((words[0],))) if name == words[0])
    if COMMANDS[words[0]][0] == "cli.dev.develop":  # its arguments are another tool's
        return []
    known = set(_flags(parser))
    wrong = [word for word in re.findall(r"(?<![\w-])--[a-z][a-z-]*", " ".join(words)) if word not in known]
    verbs = dict(_members(parser))
    if verbs and len(words) > 1 and re.fullmatch(r"[a-z][a-z-]+", words[1]) and words[1] not in verbs:
        wrong.append(words[1])
    return wrong


def _members(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
    for _, member in _members(parser):
        yield from _flags(member)


def inline(page: str) -> list[str]:
    """The command lines of `orb` that stand inside a page's text."""
    text = re.sub(r"^ {0,3}```.*?^ {0,3}```", "", (ROOT / page).read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    spans = (re.sub(r"\s+", " ", span.replace("\\|", "|")) for span in re.findall(r"`([^`]+)`", text))
    return [span for span in spans if re.match(r"(\./)?orb [a-z-]", span)]


def written(folder: Path, name: str, text: str) -> None:
    """Write an example's file, with the line end that an editor would give it."""
    (folder / name).write_text(f"{text}\n", "utf-8")


# --- what becomes of each example -------------------------------------------------------------------------------------

SHELL: Final = frozenset({"orb", "./orb", "curl", "export", "source", "mkdir", "tag=$(sed"})
"""What an example that is run begins with."""

NETWORK: Final = "needs a package index; tests/integration/test_wheel.py builds the wheel and runs it"
DOCKER: Final = "needs Docker and images; tests/e2e/test_compose.py and test_compose_backup.py run the same services"
TERRAFORM: Final = "needs Terraform; tests/e2e/test_terraform.py applies and imports it where there is one"
MINUTES: Final = "takes minutes; tests and benchmarks are run by themselves"
SYNOPSIS: Final = "a synopsis; its commands and flags are compared with the program's"
SHAPE: Final = "no command; shows a form"
LISTED: Final = {
    ("README.md", "./orb test"): MINUTES,
    ("README.md", "orb crawl URL..."): SYNOPSIS,
    ("README.md", "./orb crawl https://news"): "goes on; tests/e2e/test_recrawl.py runs one, with --refresh",
    ("README.md", "./orb lint"): MINUTES,
    ("README.md", "pip wheel"): NETWORK,
    ("README.md", "terraform {"): TERRAFORM,
    ("README.md", "seeds "): "a diagram",
    ("docs/api.md", "openapi-python-client"): "tests/integration/test_typed_client.py generates the client",
    ("docs/api.md", "from orbweaver_client"): "tests/integration/test_typed_client.py runs such a client",
    ("docs/benchmarks.md", "orb bench"): MINUTES,
    ("docs/benchmarks.md", "taskset -c 0 orb bench"): MINUTES,
    ("docs/benchmarks.md", "orb crawl URL --delay 0"): "a crawl under a sampling profiler",
    ("docs/benchmarks.md", "git clone . ../before"): "sets up an earlier commit for `orb bench start_up --before`",
    ("docs/benchmarks.md", "ORB_VISITS=512 orb crawl"): "a crawl of 1,000 hosts that a benchmark serves",
    ("docs/cluster.md", "orb up [--masters"): SYNOPSIS,
    ("docs/cluster.md", "orb master --id"): "names servers of other machines; tests/e2e/test_cluster.py runs members",
    ("docs/cluster.md", "accounts: {"): "tests/contract/test_worker_rights.py runs a server with it",
    ("docs/cluster.md", "deploy/certificates"): DOCKER,
    ("docs/cluster.md", "./orb ctl login"): DOCKER,
    ("docs/command.md", "orb crawl URL..."): SYNOPSIS,
    ("docs/command.md", "waits "): SHAPE,
    ("docs/crawls.md", "priority:"): "a part of a spec; tests/e2e/test_priority.py crawls with such rules",
    ("docs/crawls.md", "overrides:"): "a part of a spec; tests/e2e/test_overrides.py crawls with such overrides",
    ("docs/crawls.md", "media:"): "a part of a spec; tests/e2e/test_media_types.py crawls with such types",
    (
        "docs/crawls.md",
        '{"seeds": ["https://a.example/",',
    ): "a request body; tests/integration/test_api_seed_sets.py sends such",
    ("docs/crawls.md", "seeds:"): "a part of a spec; tests/e2e/test_seed_contexts.py crawls with such seeds",
    (
        "docs/crawls.md",
        '{"delay_s"',
    ): "the body of a request; tests/integration/test_api_host_policies.py sends such ones",
    ("docs/security.md", '{"role"'): "the body of a request; tests/integration/test_api_identities.py sends such ones",
    ("docs/security.md", "RateLimit"): SHAPE,
    ("docs/recrawl.md", "orb crawl"): "tests/e2e/test_recrawl.py runs such a crawl, on a site that changes",
    ("docs/items.md", '{"type": "items/1"'): SHAPE,
    ("docs/metrics.md", "scrape_configs:"): SHAPE,
    ("docs/operations.md", "docker compose"): DOCKER,
    ("docs/reliability.md", "./orb faults"): MINUTES,
    ("docs/scaling.md", "orb:pool_workers_wanted"): "a query; tests/integration/test_alerts.py evaluates its rule",
    ("docs/scaling.md", "apiVersion: keda.sh"): "needs Kubernetes",
    ("docs/scaling.md", "sum by (version)"): "a query of Prometheus",
    ("docs/terraform.md", "./orb terraform install"): "tests/integration/test_terraform_docs.py runs it",
    ("docs/terraform.md", "provider_installation {"): "tests/integration/test_terraform_docs.py compares it",
    ("docs/terraform.md", "terraform"): TERRAFORM,
    ("docs/terraform.md", "$ terraform"): TERRAFORM,
    ("docs/reliability.md", "ORB_MODEL_EXAMPLES"): MINUTES,
    ("docs/reliability.md", ".venv/bin/python -m tests.support.simulation.schedule_table"): MINUTES,
}
"""Examples that are not run here, by their page and beginning, and why."""

FILES: Final = {
    ("docs/command.md", "name: docs"): "crawl.yaml",
    ("docs/configuration.md", "dir: /var/lib/orb"): "w1.yaml",
    ("docs/ctl.md", "name: site"): "crawl.yaml",
    ("docs/recrawl.md", "seeds:"): "news.yaml",
    ("docs/recrawl.md", "name: nightly"): "nightly.yaml",
    ("docs/ctl.md", "name: docs"): "docs.yaml",
    ("docs/ctl.md", "kind: host-policy"): "search.yaml",
    ("docs/pages.md", "collections:"): "config.yaml",
    ("docs/scaling.md", "name: docs-canary"): "docs-canary.yaml",
    ("docs/schedules.md", "name: nightly"): "nightly.yaml",
}
"""Examples that are files, which are there before their page's commands run."""

OUTPUTS: Final = {
    ("docs/items.md", '{"id":'): "orb export items shop.crawl",
    ("docs/items.md", "extract.items[0]"): "orb crawl --spec hover.yaml --out hover.crawl",
}
"""Examples that are the output of a command."""


def entry(known: dict[tuple[str, str], str], block: Block, text: str) -> tuple[str, str] | None:
    """The entry of a table that an example falls under."""
    start = text.strip()
    return next((key for key in known if key[0] == block.page and start.startswith(key[1])), None)


def remaining(block: Block) -> tuple[list[str], list[str]]:
    """The commands of a block of shell that are run, and its lines that are neither run nor listed."""
    run: list[str] = []
    forgotten: list[str] = []
    for command in commands(block.text):
        if entry(LISTED, block, command):
            continue
        (run if command.split(" ")[0] in SHELL else forgotten).append(command)
    return run, forgotten


def scripted(block: Block) -> bool:
    """Return True for a block of shell: no file, no output, not listed as a whole, no terminal with its answers."""
    tables = (LISTED, FILES, OUTPUTS)
    return not block.text.startswith("$ ") and not any(entry(table, block, block.text) for table in tables)
