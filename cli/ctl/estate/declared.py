"""Reads declared resources from files, in the form of `get -o yaml`, of `export estate` or of the REST API.

The field `kind` of a document names the kind of resource, such as `kind: host-policy`. In a document without `kind`,
the other fields show the kind. Example: only host policies have the field `host`, so a document with `host` is a host
policy. A crawl may also have the form of a spec file for `orb crawl --spec`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from cli.ctl.estate.kinds import (
    API_KEY,
    BY_NAME,
    CONFIG,
    CRAWL,
    EXCLUSION,
    IDENTITY,
    KINDS,
    TARGET_KINDS,
    DeclaredKind,
)
from cli.ctl.problems import ProblemAnswer, WrongField
from cli.terminal.exits import Usage
from cli.terminal.yaml_input import documents, text_of
from shared.domain.suggestions import did_you_mean

_ENDINGS: Final = (".yaml", ".yml", ".json")
_KIND: Final = "kind"
_BESIDE_SPEC: Final = ("labels", "desired", "start")
"""The fields of a declared crawl that are not part of its `spec`."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A resource that a file declares.

    - `body`: the body of the PUT request for the resource.
    - `source`: a phrase for messages that names the file, and the document within the file.
    """

    name: str
    body: Mapping[str, Any]
    source: str
    kind: DeclaredKind = CRAWL

    @property
    def title(self) -> str:
        """The resource's kind and name, as in messages: `crawl/docs`."""
        return self.kind.title(self.name)

    @property
    def has_secret(self) -> bool:
        """True if this is an API key with a secret, and not an identity that a client certificate proves."""
        return self.kind is API_KEY and self.body.get("kind", "key") == "key"

    @property
    def wrong(self) -> WrongField | None:
        """The error in the resource's name, as a master would report it. None if the name is valid.

        The client checks the name itself, because some invalid names cannot be sent in the path of a request.
        """
        named = self.kind.named(self.name)
        return named if isinstance(named, WrongField) else None

    def sourced(self, problem: ProblemAnswer) -> ProblemAnswer:
        """Return a copy of `problem` with the file and the name of this resource at the beginning of its message."""
        what = f"{self.kind.name} {self.name}" if self.kind.key else self.kind.name
        return replace(problem, detail=f"{self.source}: {what}: {problem.detail}")


def read(files: Iterable[str], stdin: Iterable[str]) -> list[Declared]:
    """Return all resources that `files` declare, in the order in which they are to be applied.

    The name `-` is standard input (`stdin`). A folder means its .yaml, .yml and .json files. Raise Usage if there is no
    resource, or if one is invalid or declared twice.
    """
    found: list[Declared] = []
    for name in files:
        for text, source in _texts(name, stdin):
            for place, data in enumerate(documents(text, source), 1):
                found += _resources(data, source if place == 1 else f"{source}, document {place}")
    if not found:
        raise Usage(
            "the files contain no crawl and no other resource: a crawl needs `name:` and `spec:`, or `name:` and "
            "`seeds:`."
        )
    seen: dict[str, str] = {}
    for each in found:
        if each.title in seen:
            what = f"the {each.kind.name} {each.name!r}" if each.kind.key else f"the {each.kind.name}"
            raise Usage(f"{what} is declared twice: in {seen[each.title]} and in {each.source}.")
        seen[each.title] = each.source
    return sorted(found, key=lambda each: KINDS.index(each.kind))


def _texts(name: str, stdin: Iterable[str]) -> Iterator[tuple[str, str]]:
    if name == "-":
        try:
            yield "".join(stdin), "standard input"
        except UnicodeDecodeError as error:
            raise Usage(f"standard input is not UTF-8 text (byte {error.start}).") from None
        return
    path, files = Path(name), None
    try:
        if path.is_dir():
            files = [file for file in sorted(path.iterdir()) if file.suffix in _ENDINGS and file.is_file()]
    except OSError as error:
        raise Usage(f"cannot read the declaration {name}: {error.strerror}.") from None
    if files is None:
        yield text_of(path, "declaration"), name
        return
    for file in files:
        yield text_of(file, "declaration"), str(file)


def _resources(data: Any, source: str) -> Iterator[Declared]:
    match data:
        case None:
            return
        case {"items": list(items), **rest} if not rest:
            for place, item in enumerate(items):
                yield from _resources(item, f"{source}, items[{place}]")
        case dict():
            yield _resource(data, source)
        case _:
            raise Usage(f"{source} is not a crawl: it is a {'list' if isinstance(data, list) else 'single value'}.")


def _resource(data: dict[str, Any], source: str) -> Declared:
    kind, explicit = _kind_of(data, source)
    naming = [field for field in (kind.crawl if kind.of_crawl else "", kind.key) if field]
    rest = {name: value for name, value in data.items() if name not in (_KIND, *naming)}
    for field in naming:
        if isinstance(data.get(field), str):
            continue
        more = "" if explicit or kind is not CRAWL else "; `kind:` names another kind of resource"
        needs = f"its `{field}:` is no text: quote it" if field in data else f"it has no `{field}:`"
        raise Usage(f"{source} is not {_a(kind.name)}: {needs}{more}.")
    name = "/".join(data[field] for field in naming) or kind.name
    if kind is CRAWL:
        rest = _crawl(rest, source, explicit=explicit)
    if kind is API_KEY:
        rest = _api_key_body(rest)
    body = kind.declared(rest)
    if kind is CONFIG:
        body = _config(body, source)
    named = kind.named(name)
    return Declared(named if isinstance(named, str) else name, body, source, kind)


def _kind_of(data: Mapping[str, Any], source: str) -> tuple[DeclaredKind, bool]:
    """Return the kind of a document, and True if the document states its kind.

    The kind of a document without the field `kind` is inferred from the other fields. Raise Usage for an unknown kind.
    """
    word = data.get(_KIND)
    if isinstance(word, str) and word in BY_NAME:
        return BY_NAME[word], True
    if EXCLUSION.key in data and word in TARGET_KINDS:  # a master shows the form of the target under this name
        return EXCLUSION, True
    if _KIND in data:
        raise Usage(f"{source}: unknown kind {word!r}; {did_you_mean(str(word), BY_NAME)}.")
    if isinstance(data.get(CRAWL.key), str) and isinstance(data.get("spec"), dict) and not API_KEY.signs & data.keys():
        return CRAWL, False
    return next((kind for kind in KINDS if kind is not CRAWL and kind.signs & data.keys()), CRAWL), False


def _crawl(rest: dict[str, Any], source: str, *, explicit: bool) -> dict[str, Any]:
    """Convert the fields of a document to the body of a PUT of a crawl.

    `rest`: the fields of the document except its kind and name. There are two forms of documents:

    - The document has a `spec` with fields. The result is `rest`, unchanged.
    - The document has no `spec`, but `seeds` at the top level. The result has a new `spec` with all fields of `rest`,
      except `labels`, `desired` and `start`. These three stay at the top level.

    Raise Usage for any other document. `explicit`: True if the document states its kind. If False, the error message
    also mentions the field `kind`.
    """
    if isinstance(rest.get("spec"), dict):
        return rest
    if "spec" not in rest and "seeds" in rest:
        beside: dict[str, Any] = {name: rest[name] for name in _BESIDE_SPEC if name in rest}
        return {**beside, "spec": {name: value for name, value in rest.items() if name not in beside}}
    more = "" if explicit else "; `kind:` names another kind of resource"
    raise Usage(f"{source} is not a crawl: it has no `spec:` (or `seeds:`){more}.")


def _api_key_body(rest: dict[str, Any]) -> dict[str, Any]:
    """Return the body of the PUT request for an API key that a document declares.

    `rest`: the fields of the document without `kind: api-key` and without the name.

    The body has a field `kind` of its own. It says what proves the identity: a secret (`key`) or a client certificate
    (`certificate`). A document has this field in one of two places:

    - In `spec`, as in a master's answer. Example: `spec: {kind: certificate}` becomes `kind: certificate`. All fields
      of `spec` move to the top level.
    - At the top level, as in an exported file. There its name is `identity`, because the document has another `kind`.
      Example: `identity: certificate` becomes `kind: certificate`.
    """
    if isinstance(rest.get("spec"), dict):
        spec = rest.pop("spec")
        return {**rest, **spec}
    return {"kind" if name == IDENTITY else name: value for name, value in rest.items()}


def _config(body: dict[str, Any], source: str) -> dict[str, Any]:
    """Return the settings of a document, which are below its field `config`.

    Raise Usage if the document has no such field, or has other fields beside it.
    """
    config = body.pop("config", None)
    if not isinstance(config, dict):
        raise Usage(f"{source} is not a config: it has no `config:` with the settings.")
    if body:
        raise Usage(f"{source}: config: unknown field {next(iter(body))!r}; settings are below `config:`.")
    return config


def _a(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
