"""Finds the masters to use and their key: from flags, variables, or the contexts that `orb ctl login` stores in a file.

A context is a name for a cluster's masters and their key. A stored key is sent only to the masters that were stored
with it.
"""

import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from cli.terminal.exits import Environment, Usage
from cli.terminal.yaml_input import document, text_of
from shared.tls import TlsSettings, tls_files

SERVER: Final = "ORB_SERVER"
KEY: Final = "ORB_API_KEY"
CONTEXT: Final = "ORB_CONTEXT"
TLS: Final = {"tls_ca": "ORB_TLS_CA", "tls_cert": "ORB_TLS_CERT", "tls_key": "ORB_TLS_KEY"}
"""For each flag that names a TLS file, the environment variable that is used without the flag."""

DEFAULT: Final = "default"
_VISIBLE: Final = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a cluster: the base URLs of its masters, in the order in which they are tried, and their API key.

    `tls`: the CA that verifies the masters' certificates, and the client certificate. None: the CAs of the system.
    """

    servers: tuple[str, ...]
    key: str | None = field(default=None, repr=False)
    tls: TlsSettings | None = None


@dataclass(frozen=True, slots=True)
class Contexts:
    """The content of the file of contexts. Instances are immutable.

    - `current`: the name of the context that is used if the command names none.
    - `known`: for each context by name, its masters, API key and TLS files.
    """

    current: str | None = None
    known: Mapping[str, Access] = field(default_factory=dict)

    def having(self, name: str, access: Access) -> "Contexts":
        """Return a copy in which `name` is the current context and has this access (masters, API key, TLS files)."""
        return Contexts(name, {**self.known, name: access})

    def using(self, name: str) -> "Contexts":
        """Return a copy in which `name` is the current context. Raise Usage if there is no such context."""
        self.named(name)
        return replace(self, current=name)

    def without(self, name: str) -> "Contexts":
        """Return a copy without the context `name`. Raise Usage if there is no such context."""
        self.named(name)
        left = {each: access for each, access in self.known.items() if each != name}
        return Contexts(None if self.current == name else self.current, left)

    def named(self, name: str) -> Access:
        """Return the masters, API key and TLS files of the context `name`. Raise Usage if there is no such context."""
        if name not in self.known:
            known = ", ".join(sorted(self.known)) or "none is stored"
            raise Usage(
                f"there is no context {name!r} (known: {known}); create it with `orb ctl login --context {name}`."
            )
        return self.known[name]


def chosen(flags: Mapping[str, str | None], environ: Mapping[str, str], stored: Contexts) -> Access:
    """Return the masters, API key and TLS files that a command uses.

    - The context is named by a flag or variable. Without one, it is the current context of `stored`.
    - A flag overrides its variable, and a variable overrides the context.
    - If a flag or variable names a master that is not in the context, the context's key and TLS files are not used.

    Raise Usage if no master is given, if a flag or variable names an unknown context, or if the key cannot be sent.
    """
    server = flags.get("server") or environ.get(SERVER)
    key = given_key(flags.get("key"), environ)
    name = flags.get("context") or environ.get(CONTEXT)
    tls = files(flags, environ)
    access = None
    if name is not None:
        access = stored.named(name)
    elif stored.current is not None:
        access = stored.known.get(stored.current)
    if server is not None:
        servers = addresses(server.split(","))
    elif access is not None:
        servers = access.servers
    else:
        raise Usage(f"no server given: set --server or {SERVER}, or run `orb ctl login --server URL`.")
    if access is not None and set(servers) <= set(access.servers):
        tls = tls or access.tls
        if key is None and access.key and (known := access.key.strip()):
            key = checked_key(known, f"the context {name or stored.current!r}")
    return Access(servers, key, tls)


def given_key(flag: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the API key of the flag `--key`, or else of its variable. Remove the space around it.

    Return None if both are missing or blank. Raise Usage if the key cannot be sent.
    """
    for text, origin in ((flag, "--key"), (environ.get(KEY), KEY)):
        if key := (text or "").strip():  # a variable from a file with CRLF ends in CR
            return checked_key(key, origin)
    return None


def checked_key(key: str, origin: str) -> str:
    """Return `key`. Raise Usage if an HTTP header cannot contain it. The message does not show the key.

    `origin`: where the key comes from, for the message.
    """
    if not _VISIBLE.fullmatch(key):
        raise Usage(
            f"the key from {origin} has characters that no API key has: copy the key again "
            "(`orb ctl login` replaces a stored key)."
        )
    return key


def files(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> TlsSettings | None:
    """Return the TLS files that the flags name. For a file without a flag, use its variable in `environ`.

    Return None if no file is named.
    """
    ca, cert, key = (
        Path(name).absolute() if (name := flags.get(flag) or environ.get(variable)) else None
        for flag, variable in TLS.items()
    )
    return tls_files(ca, cert, key)


def addresses(given: Iterable[str]) -> tuple[str, ...]:
    """Return the base URLs of the given masters, each once. `host:port` becomes `http://host:port`.

    Raise Usage if an address is invalid, or if none is given.
    """
    urls: dict[str, None] = {}
    for text in filter(None, (each.strip() for each in given)):
        url = text if "://" in text else f"http://{text}"
        parts = urlsplit(url)
        try:
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good or parts.query or parts.fragment or parts.username is not None:
            raise Usage(f"{text!r} is not the address of a master: expected http://host:port.")
        urls[url.rstrip("/")] = None
    if not urls:
        raise Usage("no server given: set --server http://host:port.")
    return tuple(urls)


# --- the file ---------------------------------------------------------------------------------------------------------


def default_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the file of contexts: `orb/ctl.yaml` below XDG_CONFIG_HOME, by default ~/.config."""
    home = environ.get("XDG_CONFIG_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".config") / "orb" / "ctl.yaml"


def load(path: Path) -> Contexts:
    """Read the file of contexts. Return empty Contexts if it does not exist.

    Raise Usage if it is malformed, or if its mode gives group or others any access.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except OSError as error:
        raise Usage(f"cannot read the context {path}: {error.strerror}.") from None
    if mode & 0o077:
        raise Usage(f"{path} contains keys and can be read by other users (mode {mode:o}); run `chmod 600 {path}`.")
    data = document(text_of(path, "context"), str(path))
    match data:
        case None:
            return Contexts()
        case {"contexts": dict(known), **rest} if set(rest) <= {"current"}:
            current = rest.get("current")
            return Contexts(
                current if isinstance(current, str) else None,
                {str(name): _access(path, str(name), each) for name, each in known.items()},
            )
        case _:
            raise Usage(f"{path} is not a file of contexts: move it away and run `orb ctl login` again.")


def save(path: Path, contexts: Contexts) -> None:
    """Replace the file of contexts atomically, with mode 0600. Raise Environment if it cannot be written."""
    known: dict[str, Any] = {}
    for name, access in sorted(contexts.known.items()):
        known[name] = {"servers": list(access.servers)} | ({} if access.key is None else {"key": access.key})
        if access.tls is not None:
            named = {"ca": access.tls.ca, "cert": access.tls.cert, "key": access.tls.key}
            known[name]["tls"] = {part: str(file) for part, file in named.items() if file is not None}
    text = yaml.safe_dump({"current": contexts.current, "contexts": known}, sort_keys=False)
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        staged.unlink(missing_ok=True)
        with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
            out.write(text)
        staged.replace(path)
    except OSError as error:
        raise Environment(f"cannot write {path}: {error.strerror}.") from error
    finally:
        staged.unlink(missing_ok=True)


def _access(path: Path, name: str, data: Any) -> Access:
    match data:
        case {"servers": list(servers), **rest} if set(rest) <= {"key", "tls"}:
            key, tls = rest.get("key"), rest.get("tls") or {}
            if isinstance(tls, dict) and set(tls) <= {"ca", "cert", "key"}:
                ca, cert, own = (Path(str(tls[part])) if part in tls else None for part in ("ca", "cert", "key"))
                return Access(addresses(map(str, servers)), None if key is None else str(key), tls_files(ca, cert, own))
        case _:
            pass
    raise Usage(f"{path}: the context {name!r} needs `servers:` and `key:`, may have `tls:`, and nothing else.")
