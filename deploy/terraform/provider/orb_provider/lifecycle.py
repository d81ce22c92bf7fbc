"""The operations of Terraform on a resource: plan, create, read, update, delete and import.

A kind of resource is a subclass with its attributes (`SHAPE`) and its place in the API (`COLLECTION`). It overrides
only what differs. An update first compares the resource with the state, and sends If-Match. So it does not overwrite a
change that another client made since the plan.
"""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final

from orb_provider import json_text
from orb_provider.client import Answer, Client
from orb_provider.fields import UNKNOWN, Field, FieldType, Shape, Values, is_known
from orb_provider.findings import Finding, Refusal, Rejected, refusal_findings

PROTECTION: Final = "deletion_protection"
_ATTEMPTS: Final = 5
_EMPTY: Final[tuple[Any, ...]] = (None, "", {}, [])
ONLY_NEW: Final = {"If-None-Match": "*"}
"""The headers of a PUT that must fail if the resource exists."""


@dataclass(frozen=True, slots=True)
class Review:
    """The errors and warnings (`findings`) of the API's `/plan` for a resource.

    `same`: the attributes whose new text means the same as the present text.
    """

    findings: tuple[Finding, ...] = ()
    same: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for a resource: its values after the apply, and warnings (`findings`).

    `replaced`: the changed attributes that make Terraform replace the resource by a new one.
    """

    values: Values
    replaced: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


class Lifecycle:
    """The operations on resources of one kind. A kind, such as crawls, is a subclass.

    Operations raise Refusal if the API refuses a request, and Rejected if they fail for any other reason.
    """

    SHAPE: ClassVar[Shape]
    COLLECTION: ClassVar[str]
    KEY: ClassVar[str] = "name"
    """The attribute that is the last part of the resource's path."""
    WHOLE: ClassVar[str] = ""
    """The attribute on which an error about an API field without an attribute is shown. Empty: on none."""
    LACKS: ClassVar[str] = "It cannot be applied as things are."
    """The headline of the warnings that the API's `/plan` returns. Terraform shows them on the attribute `crawl`."""
    PARTS: ClassVar[Mapping[str, str]] = {}
    """Maps the name of a part of the request's path in an API error, such as `path.set`, to the part's attribute."""

    def __init__(self, client: Client | None) -> None:
        self._client = client

    @property
    def client(self) -> Client:
        """The client of the cluster. Raise Rejected while the provider's configuration is unknown."""
        if self._client is None:
            raise Rejected(Finding("The provider's configuration is not known yet.", "Apply what it depends on first."))
        return self._client

    # --- what a kind may override ---

    def same(self, field: Field, known: Any, remote: Any, values: Values) -> bool:
        """Return True if the API's value `remote` of an attribute means the same as the state's value `known`.

        `known` may also be a planned value. `values` has all values of the same state or plan.
        """
        return means_same(field, known, remote)

    def drifted(self, field: Field, known: Any, remote: Any, values: Values) -> Any:
        """Return the value that the state gets for the API's value `remote`, which does not mean the same as `known`.

        An empty value becomes the attribute's default. `values` are the resource's values in the state.
        """
        return field.default if remote in _EMPTY else remote

    def review(self, values: Values) -> Review:
        """Return the errors and warnings of the API's `/plan` for these values.

        Return an empty Review while any value is unknown, because values may be valid only in combination. Return one
        also if the answer has status 404 or 405, which the apply reports.
        """
        if not is_known({field.name: values[field.name] for field in self._remote()}):
            return Review()
        try:
            plan = self.planned(values)
        except Refusal as refusal:
            if refusal.status in (404, 405):  # what names it is no part of a path, which the apply says
                return Review()
            if refusal.status != 422:
                raise
            return Review(tuple(refusal_findings(refusal.renamed(self.PARTS), self.SHAPE, self.WHOLE)))
        warnings = [Finding(self.LACKS, f"{each}.", ("crawl",), warning=True) for each in plan.get("warnings", ())]
        return Review(tuple(warnings))

    def planned(self, values: Values) -> dict[str, Any]:
        """Return the body of the API's answer to `/plan` for these values."""
        body = self.body(values, creating=False)
        plan: dict[str, Any] = self.client.send("POST", self.COLLECTION, str(values[self.KEY]), "plan", body=body).body
        return plan

    def find(self, text: str) -> Answer | None:
        """Return the resource to import, None if there is none. `text` is the id that the user gave."""
        return self._get(text)

    def body(self, values: Values, *, creating: bool) -> dict[str, Any]:
        """Return the body of a POST (`creating` True) or a PUT (False). Values that are None are left out.

        The body of a PUT also lacks the attribute `KEY`, because it is in the path.
        """
        left_out = () if creating else (self.KEY,)
        return {
            field.api_name: sent(field, value)
            for field in self._remote()
            if (value := values[field.name]) is not None and field.name not in left_out
        }

    # --- operations ---

    def plan(self, config: Values, prior: Values | None) -> Plan:
        """Return the plan for a configuration. `prior` has the values of the state, None if there is no resource yet.

        Raise Rejected if the API would refuse the configuration, or if a protected resource would be replaced.
        """
        values: Values = {}
        for field in self.SHAPE.fields:
            value = config.get(field.name) if field.settable else None if prior is None else prior[field.name]
            if value is None:
                value = field.default if field.settable else UNKNOWN if prior is None else None
            if prior is not None and field.settable and prior[field.name] is not None:
                kept = prior[field.name]
                if field.once or (value is not None and means_same(field, kept, value)):
                    value = kept
            values[field.name] = value
        if prior is None:
            return Plan(values, (), self._reviewed(values).findings)
        changed = self._changed(prior, values)
        replaced = tuple(name for name in changed if self.SHAPE.by_name[name].replaces)
        if replaced:
            self._check_protection(prior, f"Another `{replaced[0]}` needs another resource, and this one is protected.")
            return Plan(self._unsettled(values, stable=True), replaced)
        review = self._reviewed(values) if self._sent(changed) else Review()
        values |= {name: prior[name] for name in review.same & changed if prior[name] is not None}
        if self._sent(self._changed(prior, values)):
            values = self._unsettled(values)
        return Plan(values, (), review.findings)

    def plan_destroy(self, prior: Values) -> None:
        """Raise Rejected if the resource is protected against deletion. `prior` has the values of the state."""
        self._check_protection(prior, "The resource is protected against deletion.")

    def create(self, planned: Values) -> Values:
        """Create the resource, and return its values. Retries create it only once. Raise Rejected if it exists."""
        try:
            answer = self.client.send(
                "POST",
                self.COLLECTION,
                body=self.body(planned, creating=True),
                headers={"Idempotency-Key": uuid.uuid4().hex},
            )
        except Refusal as refusal:
            if refusal.kind != "exists":
                raise
            kind, name = self.SHAPE.name, planned.get(self.KEY) or "ID"
            remedy = f"Import it with `terraform import orb_{kind}.NAME {name}`, or choose another name."
            raise Rejected(Finding(f"It exists already: {refusal.detail}.", remedy)) from refusal
        return self._applied(planned, answer)

    def read(self, state: Values) -> Values | None:
        """Return the values that the API has now. Return None if the resource no longer exists.

        A value that means the same as that of the state keeps the text of the state.
        """
        answer = self._get(str(state[self.KEY]))
        return None if answer is None else self._read(state, answer)

    def update(self, prior: Values, planned: Values) -> Values:
        """Change the resource from `prior` to `planned`, and return its values.

        Raise Rejected if another client changed or deleted it since `prior` was read.
        """
        if not self._sent(self._changed(prior, planned)):
            return planned
        for _ in range(_ATTEMPTS):
            answer = self._get(str(prior[self.KEY]))
            if answer is None:
                raise Rejected(Finding("It was deleted since the plan.", "Plan and apply again."))
            if not self._equal(prior, answer):
                if self._equal(planned, answer):
                    return self._applied(planned, answer)  # by an earlier attempt whose answer was lost
                raise Rejected(Finding("It was changed by another client since the plan.", "Plan and apply again."))
            try:
                answer = self._put(planned, seen(answer))
            except Refusal as refusal:
                if refusal.status != 412:
                    raise
            else:
                return self._applied(planned, answer)
        raise Rejected(Finding("It is changed by other clients all the time.", "Apply again later."))

    def delete(self, prior: Values) -> None:
        """Delete the resource. Do nothing if it does not exist. Raise Rejected if it is protected."""
        self.plan_destroy(prior)
        try:
            self.client.send("DELETE", self.COLLECTION, str(prior[self.KEY]))
        except Refusal as refusal:
            if refusal.status != 404:
                raise

    def import_(self, text: str) -> Values:
        """Return the values of the existing resource that `text` identifies. Raise Rejected if there is none."""
        answer = self.find(text)
        if answer is None:
            kind = self.SHAPE.name
            raise Rejected(Finding(f"There is no {kind} {text!r} to import.", f"Check the {self.KEY} of the {kind}."))
        return self._read({field.name: field.default for field in self.SHAPE.fields}, answer)

    # --- parts ---

    def _remote(self) -> Iterable[Field]:
        return (field for field in self.SHAPE.settable() if not field.local)

    def _changed(self, prior: Values, values: Values) -> set[str]:
        return {field.name for field in self.SHAPE.settable() if values[field.name] != prior[field.name]}

    def _sent(self, changed: Iterable[str]) -> bool:
        """Return True if at least one of these attributes is sent to the API, and not only kept in the state."""
        return any(not self.SHAPE.by_name[name].local for name in changed)

    def _unsettled(self, values: Values, *, stable: bool = False) -> Values:
        """Return a copy of `values` for a plan: each computed value that an update may change is UNKNOWN.

        `stable`: True to also make the computed values UNKNOWN that no update changes, as for a new resource.
        """
        unsettled = {f.name for f in self.SHAPE.fields if not f.settable and (stable or not f.stable)}
        return values | dict.fromkeys(unsettled, UNKNOWN)

    def _reviewed(self, values: Values) -> Review:
        review = Review() if self._client is None else self.review(values)
        if any(not each.warning for each in review.findings):
            raise Rejected(*review.findings)
        return review

    def _check_protection(self, prior: Values, why: str) -> None:
        if prior.get(PROTECTION):
            remedy = f"Set `{PROTECTION} = false` and apply that first."
            raise Rejected(Finding(why, remedy, (PROTECTION,)))

    def _get(self, key: str) -> Answer | None:
        """Return the resource with this key, None if it does not exist.

        Raise Rejected if the API does not have the collection at all, because the master is of an older release.
        """
        try:
            return self.client.get(self.COLLECTION, key)
        except Refusal as refusal:
            if refusal.status not in (404, 422):
                raise
            try:
                self.client.get(self.COLLECTION, query={"limit": 1})
            except Refusal as whole:
                if whole.status != 404:
                    raise
                raise older(f"/v1/{self.COLLECTION}") from refusal
            return None

    def _put(self, planned: Values, headers: Mapping[str, str]) -> Answer:
        body = self.body(planned, creating=False)
        return self.client.send("PUT", self.COLLECTION, str(planned[self.KEY]), body=body, headers=headers)

    def _equal(self, values: Values, answer: Answer) -> bool:
        return all(
            self.same(field, values[field.name], received(field, answer.body), values)
            for field in self._remote()
            if not field.once and field.name != self.KEY
        )

    def _read(self, state: Values, answer: Answer) -> Values:
        values = dict(state)
        for field in self.SHAPE.fields:
            if field.local or field.once:
                values[field.name] = state[field.name] if state[field.name] is not None else field.default
                continue
            remote = received(field, answer.body)
            if not field.settable:
                values[field.name] = remote
            elif not self.same(field, state[field.name], remote, state):
                values[field.name] = self.drifted(field, state[field.name], remote, state)
            elif state[field.name] is None:
                values[field.name] = field.default
        return values

    def _applied(self, planned: Values, answer: Answer) -> Values:
        """Return the planned values, with the computed values of the API's answer."""
        computed = {f.name: received(f, answer.body) for f in self.SHAPE.fields if not f.settable and not f.local}
        return planned | computed


def seen(answer: Answer) -> Mapping[str, str]:
    """Return the header If-Match for a PUT that must fail if the resource has changed since `answer`.

    Return no header if the answer has no ETag.
    """
    return {} if answer.etag is None else {"If-Match": answer.etag}


def means_same(field: Field, known: Any, other: Any) -> bool:
    """Return True if two values of an attribute mean the same.

    They do if they are equal, both empty, JSON of equal values, or the same point in time.
    """
    if known in _EMPTY or other in _EMPTY:
        return known in _EMPTY and other in _EMPTY
    if not is_known(known) or not is_known(other):
        return False
    match field.type:
        case FieldType.JSON:
            return json_text.same(known, other)
        case FieldType.TIME:
            return known == other or (_moment(known) is not None and _moment(known) == _moment(other))
        case FieldType.NUMBER:
            return decimal(known) == decimal(other)
        case _:
            return bool(known == other)


def sent(field: Field, value: Any) -> Any:
    """Return the value of an attribute as it is sent to the API: JSON text is decoded, a decimal becomes a float."""
    match field.type:
        case FieldType.JSON:
            return json_text.decode(value)
        case FieldType.NUMBER:
            return float(value)
        case _:
            return value


def decimal(value: Any) -> int | str | None:
    """Return a number in the form that Terraform reads without loss: an int, or a text such as `0.1`.

    Return None if the value is no number.
    """
    try:
        number = float(value)
        return int(number) if number.is_integer() else repr(number)
    except (TypeError, ValueError, OverflowError):
        return None


def received(field: Field, body: dict[str, Any]) -> Any:
    """Return the value of an attribute from the body of an answer, in the form of the state: JSON becomes text.

    Raise Rejected if the body does not have the field.
    """
    try:
        value = body[field.api_name]
    except KeyError:
        raise older(f"the field `{field.api_name}`") from None
    if value is None:
        return None
    match field.type:
        case FieldType.JSON:
            return json_text.encode(value)
        case FieldType.TEXT | FieldType.TIME:
            return str(value)
        case FieldType.NUMBER:
            return decimal(value)
        case _:
            return value


def older(what: str) -> Rejected:
    """Return the error for the user that the API lacks `what`, because its masters are of an older release."""
    return Rejected(Finding(f"The API does not have {what}.", "Its masters are of an older release: upgrade them."))


def checked(shape: Shape, config: Values) -> list[Finding]:
    """Return an error for each attribute whose value has a wrong form, such as invalid JSON. Send no request.

    Unknown values are not checked.
    """
    findings = []
    for field in shape.settable():
        value = config.get(field.name)
        if value is None or not is_known(value):
            continue
        problem = _problem(field, value)
        if problem:
            findings.append(Finding(f"`{field.name}` {problem}.", field.text, (field.name,)))
    return findings


def _problem(field: Field, value: Any) -> str:
    match field.type:
        case FieldType.WHOLE if isinstance(value, str) or value != int(value):
            return "is not a whole number"
        case FieldType.LABELS if None in value.values():
            return "has a value that is null"
        case FieldType.TIME if _moment(value) is None:
            return 'is no time with a zone, as "2030-01-01T00:00:00Z"'
        case FieldType.JSON:
            try:
                if isinstance(json_text.decode(value), dict):
                    return ""
            except ValueError as error:
                return f"is not JSON: {error}"
            return "is JSON, but no object"
        case _:
            return ""


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment
