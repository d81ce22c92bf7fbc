"""Errors and warnings for the user, and the attribute under which Terraform prints each of them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from orb_provider.fields import FieldType, Shape

Path = tuple[str | tuple[str], ...]
"""The place of a finding: `(attribute,)`, `(attribute, (key,))` for a key of its map, or () for the whole resource."""

_STEP: Final = re.compile(r"^([A-Za-z0-9_]+)[.\[]?(.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Finding:
    """An error or a warning. `path` is the attribute that it is about; empty means the whole resource."""

    summary: str
    detail: str = ""
    path: Path = ()
    warning: bool = False


class Rejected(Exception):
    """The provider cannot do an operation, and the cause is not a refusal by the API.

    The findings state the cause, and what the user can do.
    """

    def __init__(self, *findings: Finding) -> None:
        super().__init__("; ".join(each.summary for each in findings))
        self.findings = findings


class Refusal(Exception):
    """The API refused a request. `kind` is the problem type.

    - `errors`: (path, message, hint) of each wrong field.
    - `unsure`: an earlier attempt of the request had no definite answer, and may have been applied.
    """

    def __init__(self, status: int, kind: str, detail: str, hint: str, errors: Iterable[tuple[str, str, str]]) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail, self.hint = status, kind, detail, hint
        self.errors = tuple(errors)
        self.unsure = False

    def renamed(self, parts: Mapping[str, str]) -> "Refusal":
        """Return a copy in which the paths of wrong fields are renamed. `parts` maps old paths to new ones."""
        errors = [(parts.get(path, path), message, hint) for path, message, hint in self.errors]
        renamed = Refusal(self.status, self.kind, self.detail, self.hint, errors)
        renamed.unsure = self.unsure
        return renamed


def attribute_path(field: str, shape: Shape, whole: str = "") -> Path:
    """Return the path of the attribute on which Terraform shows an error about the API's field `field`.

    - `spec.scope.mode` belongs to the attribute `spec`.
    - `labels.team` belongs to the key `team` of the attribute `labels`.
    - `path.name`, a part of the request's path, belongs to the attribute `name`.
    - Any other field belongs to the attribute `whole`. If `whole` is empty, return the empty path, which means the
      whole resource.
    """
    found = _STEP.match(field.removeprefix("path."))
    if found is None:
        return ()
    names = {each.api_name: each for each in sorted(shape.fields, key=lambda each: each.settable)}
    attribute = names.get(found[1])
    if attribute is None:
        return (whole,) if whole else ()
    if attribute.type is FieldType.LABELS and found[2]:
        return (attribute.name, (found[2],))
    return (attribute.name,)


def refusal_findings(refusal: Refusal, shape: Shape, whole: str = "") -> list[Finding]:
    """Return an error for each wrong field of a refused request, with the attribute on which Terraform shows it.

    If the API named no field, return one error about the whole resource. `whole` is the attribute for fields that have
    no attribute of their own, as in `attribute_path`.
    """
    if not refusal.errors:
        return [Finding(_sentence(refusal.detail), _sentence(_remedy(refusal)))]
    return [
        Finding(
            f"{path or 'the request'} {message}" if message[:1].islower() else f"{path or 'the request'}: {message}",
            _sentence(hint or refusal.detail),
            attribute_path(path, shape, whole),
        )
        for path, message, hint in refusal.errors
    ]


def _remedy(refusal: Refusal) -> str:
    match refusal.status:
        case 401:
            return "set a valid API key as `token` of the provider, or as ORB_API_KEY, and apply again"
        case 403:
            return refusal.hint or "use a key with that role; the role viewer can only plan"
        case _:
            return refusal.hint


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if not text or text[-1] in ".!?" else ".")
