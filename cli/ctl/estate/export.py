"""Writes the declared resources of a cluster as files that `orb ctl apply` accepts."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from time import time
from typing import Any, Final

from cli.ctl.client import Client
from cli.ctl.estate.kinds import API_KEY, KINDS, DeclaredKind
from cli.ctl.estate.plans import existing, present
from cli.ctl.output import as_yaml
from cli.ctl.problems import Refusal
from cli.ctl.verb_context import VerbContext
from cli.terminal.atomic_output import written_whole
from cli.terminal.exits import Usage

_FILES: Final = {kind.name: f"{kind.at.rsplit('/', 1)[1]}.yaml" for kind in KINDS}


def export_estate(desk: VerbContext, folder: Path | None) -> None:
    """Write all declared resources as YAML: one file in `folder` for each kind. None: write to standard output.

    A kind without resources gets an empty file, which replaces the file of an earlier export. The files appear at the
    end. If a request fails, no file is written. If the user may not list API keys, the export leaves them out, and does
    not change their file.
    """
    kinds = [kind for kind in KINDS if kind is not API_KEY or _may_list(desk, kind)]
    if folder is None:
        with written_whole(None) as out:
            for kind in kinds:
                for text in _documents(desk.client, kind, desk.note):
                    out.write(text)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Usage(f"cannot write to the folder {folder}: {error.strerror}.") from error
    count = 0
    with ExitStack() as files:
        for kind in kinds:
            out = files.enter_context(written_whole(folder / _FILES[kind.name]))
            for text in _documents(desk.client, kind, desk.note):
                out.write(text)
                count += 1
    desk.note(f"{count} {'resource' if count == 1 else 'resources'} in {folder}")


def _documents(client: Client, kind: DeclaredKind, note: Callable[[str], None]) -> Iterator[bytes]:
    """Yield each resource of a kind as a YAML document.

    Leave out exclusions and blocks that have ended, and call `note` with a message about each.
    """
    now_s = time()
    for body in _whole(client, kind):
        declares = kind.document(body, now_s)
        name = kind.name_of(body)
        if declares != kind.document(body, 0.0):
            note(f"{kind.title(name)}: what has ended is left out")
        if declares is not None:
            yield f"---\n{as_yaml({'kind': kind.name, **kind.naming(name), **declares})}".encode()


def _whole(client: Client, kind: DeclaredKind) -> Iterator[Mapping[str, Any]]:
    """Yield all resources of a kind with all their fields. Read each seed set by itself, since lists omit its seeds."""
    for body in existing(client, kind):
        if not kind.of_crawl:
            yield body
        elif (there := present(client, kind, kind.name_of(body))) is not None:
            yield there.body


def _may_list(desk: VerbContext, kind: DeclaredKind) -> bool:
    try:
        desk.client.get(kind.at, {"limit": 1})
    except Refusal as refusal:
        if refusal.problem.status != 403:
            raise
        desk.note("API keys are left out: only a key with the role admin may list them")
        return False
    return True
