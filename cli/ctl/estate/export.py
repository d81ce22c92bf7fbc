"""Writes the declared resources of a cluster as files that `orb ctl apply` takes again."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from time import time
from typing import Any, Final

from cli.ctl.client import Client
from cli.ctl.estate.kinds import KINDS, DeclaredKind
from cli.ctl.output import as_yaml
from cli.ctl.verb_context import VerbContext
from cli.terminal.atomic_output import written_whole
from cli.terminal.exits import Usage

_FILES: Final = {kind.name: f"{kind.at.rsplit('/', 1)[1]}.yaml" for kind in KINDS}


def export_estate(desk: VerbContext, folder: Path | None) -> None:
    """Write all declared resources: a file for each kind, or one stream to standard output.

    A kind without resources has an empty file, so that a repeat leaves nothing of an earlier export. All files appear
    together at the end, or none if anything fails.
    """
    if folder is None:
        with written_whole(None) as out:
            for kind in KINDS:
                for text in _documents(desk.client, kind, desk.note):
                    out.write(text)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Usage(f"cannot write to the folder {folder}: {error.strerror}.") from error
    count = 0
    with ExitStack() as files:
        for kind in KINDS:
            out = files.enter_context(written_whole(folder / _FILES[kind.name]))
            for text in _documents(desk.client, kind, desk.note):
                out.write(text)
                count += 1
    desk.note(f"{count} {'resource' if count == 1 else 'resources'} in {folder}")


def _documents(client: Client, kind: DeclaredKind, note: Callable[[str], None]) -> Iterator[bytes]:
    """Yield the resources of a kind, each as a document of YAML."""
    now_s = time()
    for body in _existing(client, kind):
        declares = kind.document(body, now_s)
        name = str(body[kind.key]) if kind.key else ""
        if declares != kind.document(body, 0.0):
            note(f"{kind.title(name)}: what has ended is left out")
        if declares is not None:
            named = {kind.key: name} if kind.key else {}
            yield f"---\n{as_yaml({'kind': kind.name, **named, **declares})}".encode()


def _existing(client: Client, kind: DeclaredKind) -> Iterator[Mapping[str, Any]]:
    if kind.key:
        return client.items(kind.at, kind.query)
    return iter([client.get(kind.at).body])
