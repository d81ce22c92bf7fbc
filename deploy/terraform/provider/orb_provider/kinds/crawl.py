"""`orb_crawl` as a resource and as a data source, and the data source `orb_crawls`."""

from hashlib import sha256
from typing import Any, Final

from orb_provider import json_text
from orb_provider.client import Answer
from orb_provider.fields import Field, FieldType, Shape, Values, computed, is_known, required
from orb_provider.findings import Finding, Refusal, refusal_findings
from orb_provider.lifecycle import PROTECTION, Lifecycle, Review, received
from orb_provider.sources import DataSource

_LABELS: Final = "Labels by which crawls are listed and schedules select them, at most 64."
_DRIFTED: Final = "True if a verb made the crawl do something else than `desired`."
_NAME: Final = "The crawl's name: lower-case letters, digits and inner hyphens, at most 63."


class Crawl(Lifecycle):
    """A crawl. Only verbs and schedules change whether it runs, unless the attribute `desired` is set."""

    COLLECTION = "crawls"
    SHAPE = Shape(
        "crawl",
        "A crawl: what to crawl and how. Without `desired` it is left to verbs and schedules whether it runs. A crawl "
        "that finished by itself, or that waits for a resource, is no drift. `reset` gives it another `crawl_id` and "
        "replaces nothing.",
        (
            required("name", FieldType.TEXT, f"{_NAME} Another name is another crawl.", replaces=True),
            required(
                "spec",
                FieldType.JSON,
                "What to crawl and how, as JSON: use `jsonencode`. `/plan` of the API checks it while Terraform "
                "plans. Fields that are left out have their defaults.",
            ),
            Field("labels", FieldType.LABELS, _LABELS, default={}),
            Field(
                "desired",
                FieldType.TEXT,
                "Whether the crawl runs: `running` or `paused`. An apply starts, resumes or pauses a crawl that a verb "
                "made do something else. Without it, verbs and schedules decide.",
            ),
            Field(
                "start",
                FieldType.SWITCH,
                "Start the crawl when it is created. Later changes of it have no effect, and none has it with "
                "`desired`.",
                default=True,
                once=True,
            ),
            Field(
                PROTECTION,
                FieldType.SWITCH,
                "Refuse to delete or replace the crawl. To delete it, set this to false and apply that first.",
                default=True,
                local=True,
            ),
            computed("id", FieldType.TEXT, "The crawl's name.", stable=True, api="name"),
            computed("crawl_id", FieldType.WHOLE, "The crawl's number. `reset` allots another one.", api="id"),
            computed("revision", FieldType.WHOLE, "The revision of the spec. Each change of it increments it."),
            computed("drifted", FieldType.SWITCH, _DRIFTED),
            computed("created_at", FieldType.TEXT, "When the crawl was created.", stable=True),
            computed(
                "spec_digest",
                FieldType.TEXT,
                "A digest of the spec as it is written and as the API has it. While it fits, a read needs no `/plan`.",
                local=True,
            ),
        ),
    )

    def _read(self, state: Values, answer: Answer) -> Values:
        values = super()._read(state, answer)
        return values | {"spec_digest": _digest(values["spec"], answer.body["spec"])}

    def _applied(self, planned: Values, answer: Answer) -> Values:
        return super()._applied(planned, answer) | {"spec_digest": _digest(planned["spec"], answer.body["spec"])}

    def _changed(self, prior: Values, values: Values) -> set[str]:
        """Return the names of the changed attributes. Include `desired` if it is set and the crawl has drifted from it.

        An apply then sends `desired` again, which ends the drift.
        """
        drifted = bool(prior["drifted"]) and values["desired"] is not None
        return super()._changed(prior, values) | ({"desired"} if drifted else set())

    def _equal(self, values: Values, answer: Answer) -> bool:
        """Return True if the crawl in `answer` equals the crawl that `values` describe.

        If the API shows that the crawl has drifted, return False unless the attribute `drifted` in `values` is True.
        """
        drifted = bool(received(self.SHAPE.by_name["drifted"], answer.body))
        return super()._equal(values, answer) and (not drifted or values["drifted"] is True)

    def same(self, field: Field, known: Any, remote: Any, values: Values) -> bool:
        """Return True if the API's value `remote` means the same as the state's value `known`.

        Two specs mean the same if they differ only in default values that one of them leaves out. The API's `/plan`
        compares them. It is not called if the digest in the state shows that neither spec has changed.
        """
        if super().same(field, known, remote, values) or field.name != "spec" or known is None:
            return super().same(field, known, remote, values)
        if values.get("spec_digest") == _digest(known, json_text.decode(remote)):
            return True
        return self._differences(values) == []

    def drifted(self, field: Field, known: Any, remote: Any, values: Values) -> Any:
        """Return the value that the state gets for the API's value `remote`, which does not mean the same as `known`.

        For a spec, return a copy of `known` with the API's values of the changed fields, so that Terraform shows only
        these changes. If the copy does not mean the same as `remote`, return `remote`.
        """
        if field.name != "spec" or known is None:
            return super().drifted(field, known, remote, values)
        differences = self._differences(values)
        if differences is None:
            return remote
        patched = _patched(known, differences)
        return patched if self._differences(values | {"spec": patched}) == [] else remote

    def review(self, values: Values) -> Review:
        """Return the errors and warnings of the API's `/plan` for a crawl.

        Return an empty Review while its name or spec is unknown.
        """
        if not (is_known(values["name"]) and is_known(values["spec"])):
            return Review()
        known = {name: values[name] if is_known(values[name]) else None for name in ("labels", "desired")}
        try:
            plan = self._planned(values | known)
        except Refusal as refusal:
            if refusal.status != 422:
                raise
            return Review(tuple(refusal_findings(refusal, self.SHAPE)))
        created = plan["action"] == "create"
        warnings = [Finding(f"{each}.", "", ("spec",), warning=True) for each in plan.get("warnings", ())]
        return Review(tuple(warnings), frozenset() if created or _spec_changes(plan) else frozenset({"spec"}))

    def _differences(self, values: Values) -> list[dict[str, Any]] | None:
        """Return the fields of the spec that differ between the API (`before`) and these values (`after`).

        Return None if the spec is not valid, or if the crawl does not exist.
        """
        try:
            plan = self._planned(values)
        except (Refusal, ValueError):
            return None
        return None if plan["action"] == "create" else _spec_changes(plan)

    def _planned(self, values: Values) -> dict[str, Any]:
        body = {"spec": json_text.decode(values["spec"]), "labels": values["labels"] or {}}
        body |= {} if values["desired"] is None else {"desired": values["desired"]}
        plan: dict[str, Any] = self.client.send("POST", self.COLLECTION, values["name"], "plan", body=body).body
        return plan


def _spec_changes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the changes of a plan that concern fields of the spec."""
    return [each for each in plan["changes"] if each["path"].startswith("spec")]


def _digest(text: str, remote: Any) -> str:
    """Return a digest of a spec in two forms: the text in the configuration, and the API's value (`remote`)."""
    return sha256(f"{text}\n{json_text.encode(remote)}".encode()).hexdigest()[:32]


def _patched(known: str, changes: list[dict[str, Any]]) -> str:
    """Return the spec `known`, in which each changed field has the API's present value (`before` of the change).

    A change inside a list is not applied correctly, so the caller must check the result.
    """
    spec = json_text.decode(known)
    for change in changes:
        _, *parents, last = change["path"].split(".")
        place = spec
        for name in parents:
            place = place.setdefault(name, {}) if isinstance(place, dict) else None
        if isinstance(place, dict):
            place[last] = change["before"]
    return json_text.encode(spec)


class CrawlSource(DataSource):
    """A data source with the declaration and the state of one crawl."""

    SHAPE = Shape(
        "crawl",
        "A crawl: its declaration and its state.",
        (
            required("name", FieldType.TEXT, _NAME),
            computed("id", FieldType.TEXT, "The crawl's name.", api="name"),
            computed("crawl_id", FieldType.WHOLE, "The crawl's number.", api="id"),
            computed("revision", FieldType.WHOLE, "The revision of the spec."),
            computed("state", FieldType.TEXT, "The state of the crawl."),
            computed("finished_reason", FieldType.TEXT, "Why the crawl finished. Null if it has not."),
            computed("blocking_reason", FieldType.TEXT, "Why nothing of it is dispatched. Null if nothing stops it."),
            computed("desired", FieldType.TEXT, "What is declared: `running` or `paused`. Null: verbs decide."),
            computed("drifted", FieldType.SWITCH, _DRIFTED),
            computed("labels", FieldType.LABELS, "The crawl's labels."),
            computed("spec", FieldType.JSON, "The whole spec as JSON, with all defaults."),
            computed("created_at", FieldType.TEXT, "When the crawl was created."),
        ),
    )

    def read(self, config: Values) -> Values:
        return self.filled(config, self.client.get("crawls", config["name"]).body)


class CrawlsSource(DataSource):
    """A data source with the names and states of the crawls that match a prefix, a state and labels."""

    SHAPE = Shape(
        "crawls",
        "The crawls of the cluster that match all given conditions, by name.",
        (
            Field("prefix", FieldType.TEXT, "Only crawls whose names begin with this."),
            Field("state", FieldType.TEXT, "Only crawls in this state."),
            Field("labels", FieldType.LABELS, "Only crawls with all these labels, at most 8."),
            computed("id", FieldType.TEXT, "Always `crawls`."),
            computed("names", FieldType.TEXTS, "The names of the crawls, in order."),
            computed("states", FieldType.LABELS, "The state of each crawl, by its name."),
        ),
    )

    def read(self, config: Values) -> Values:
        labels = [f"{key}={value}" for key, value in sorted((config.get("labels") or {}).items())]
        query = {"prefix": config.get("prefix") or "", "state": config.get("state"), "label": labels}
        states = {str(each["name"]): each["state"] for each in self.client.items("crawls", query=query)}
        return self.filled(config, {"id": "crawls", "names": list(states), "states": states})
