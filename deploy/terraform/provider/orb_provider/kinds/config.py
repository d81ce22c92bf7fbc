"""`orb_config`: named values of the hot configuration of a cluster."""

from collections.abc import Mapping
from typing import Any, Final

from orb_provider import json_text
from orb_provider.client import Answer
from orb_provider.fields import Field, FieldType, Shape, Values, computed, is_known, required
from orb_provider.findings import Finding, Refusal, Rejected
from orb_provider.lifecycle import Lifecycle, Plan, seen

_ID: Final = "config"
_ATTEMPTS: Final = 5

_Named = dict[tuple[str, ...], Any]
"""Values of a configuration by their places in it."""


class Config(Lifecycle):
    """The values of the hot configuration that the resource names. All others are left as they are.

    The configuration exists always: to create the resource sets its values, to delete it gives them their defaults.
    """

    COLLECTION = "config"
    KEY = "id"
    WHOLE = "config"
    SHAPE = Shape(
        "config",
        "Values of the hot configuration of the cluster. It has the values that `config` names, and leaves all others "
        "as they are. Deleting it gives its values back: they are as the members were started.",
        (
            required(
                "config",
                FieldType.JSON,
                "The values as JSON: use `jsonencode`. Settings that are left out are not touched. One that is removed "
                "has the value again that each member was started with.",
            ),
            computed("id", FieldType.TEXT, "Always `config`.", stable=True),
            computed("revision", FieldType.WHOLE, "The revision of the configuration."),
        ),
    )

    def same(self, field: Field, known: Any, remote: Any, values: Values) -> bool:
        """Compare the values that `known` names, without settings that are null or empty."""
        return super().same(field, known, remote, values) or (
            field.name == "config" and known is not None and _named(known) == _owned(remote, known)
        )

    def drifted(self, field: Field, known: Any, remote: Any, values: Values) -> Any:
        """Return the values that `known` names as they are now. After an import, all that are imported."""
        if field.name != "config" or known is None:
            return super().drifted(field, known, remote, values)
        return _text(_owned(remote, known))

    def plan(self, config: Values, prior: Values | None) -> Plan:
        """Keep the text of the state if the new text sets the same."""
        text = config.get("config")
        if prior is not None and is_known(text) and prior["config"] and _named(str(text)) == _named(prior["config"]):
            config = config | {"config": prior["config"]}
        return super().plan(config, prior)

    def planned(self, values: Values) -> dict[str, Any]:
        """Return the answer of `/plan` for these values beside those that the cluster has."""
        present = _named(received_config(self._get(_ID)))
        body = json_text.decode(_text(present | _named(values["config"])))
        plan: dict[str, Any] = self.client.send("POST", self.COLLECTION, "plan", body=body).body
        return plan

    def find(self, text: str) -> Answer | None:
        """Return the configuration: all that is set by the id `config`, or the values with these names."""
        answer = self._get(_ID)
        if text == _ID:
            return answer
        present = _named(received_config(answer))
        asked = [tuple(name.strip().split(".")) for name in text.split(",")]
        if any(name not in present for name in asked):
            return None
        some = json_text.decode(_text({name: present[name] for name in asked}))
        return Answer(answer.status, answer.body | {"config": some}, answer.etag, answer.unsure)

    def create(self, planned: Values) -> Values:
        """Set the values, unless another client has set one of them to something else."""
        remedy = "Import it with `terraform import orb_config.NAME {0}`, or run `orb ctl config unset {0}`."
        return self._applied(planned, self._set({}, _named(planned["config"]), remedy))

    def update(self, prior: Values, planned: Values) -> Values:
        """Change the values from `prior` to `planned`. Raise Rejected if one of them was changed since the plan."""
        remedy = "Plan and apply again. A value that is new here: run `orb ctl config unset {0}` before."
        return self._applied(planned, self._set(_named(prior["config"]), _named(planned["config"]), remedy))

    def delete(self, prior: Values) -> None:
        """Give the values back, whatever they are now."""
        self._set(_named(prior["config"]), {}, None)

    def _set(self, before: _Named, after: _Named, remedy: str | None) -> Answer:
        """Change the values that `before` or `after` names, in one request. Return the answer.

        Raise Rejected with the remedy if a value is neither as before nor as wanted. Without one, change it all the
        same.
        """
        wanted = {name: after.get(name) for name in (*before, *after)}
        for _ in range(_ATTEMPTS):
            answer = self._get(_ID)
            present = _named(received_config(answer))
            left = {name: value for name, value in wanted.items() if present.get(name) != value}
            if not left:  # they were so, or an earlier attempt whose answer was lost made them so
                return answer
            for name in left if remedy is not None else ():
                if present.get(name) != before.get(name):
                    raise Rejected(_foreign(name, present.get(name), str(remedy)))
            try:
                return self._put({"config": _text(present | left)}, seen(answer))
            except Refusal as refusal:
                if refusal.status != 412:
                    raise
        raise Rejected(Finding("It is changed by other clients all the time.", "Apply again later."))

    def _get(self, key: str) -> Answer:
        answer = self.client.get(self.COLLECTION)
        shown = answer.body | {"id": _ID, "config": _without_nulls(answer.body["config"])}
        return Answer(answer.status, shown, answer.etag, answer.unsure)

    def _put(self, planned: Values, headers: Mapping[str, str]) -> Answer:
        body = json_text.decode(planned["config"])
        answer = self.client.send("PUT", self.COLLECTION, body=body, headers=headers)
        return Answer(answer.status, answer.body | {"id": _ID}, answer.etag, answer.unsure)


def received_config(answer: Answer) -> str:
    """Return the configuration of an answer as JSON."""
    return json_text.encode(answer.body["config"])


def _foreign(name: tuple[str, ...], value: Any, remedy: str) -> Finding:
    """Return the error for a value that another client has set or unset."""
    now = "is not set any more" if value is None else f"is {json_text.encode(value)} in the cluster already"
    dotted = ".".join(name)
    return Finding(f"`{dotted}` {now}: another client changed it.", remedy.format(dotted), ("config",))


def _named(text: str) -> Any:
    """Return the values that a configuration sets, by their places. Return a text that is no JSON as it is."""
    try:
        return _leaves(_without_nulls(json_text.decode(text)))
    except ValueError:
        return text


def _owned(remote: str, known: str) -> Any:
    """Return the values of `remote` that `known` names."""
    named, present = _named(known), _named(remote)
    return {name: present[name] for name in named if name in present} if isinstance(named, dict) else None


def _text(values: _Named) -> str:
    """Return the JSON of a configuration with these values. A value that is None is not set."""
    whole: dict[str, Any] = {}
    for name, value in values.items():
        part = whole
        for each in name[:-1]:
            part = part.setdefault(each, {})
        part[name[-1]] = value
    return json_text.encode(_without_nulls(whole))


def _leaves(value: Any, place: tuple[str, ...] = ()) -> _Named:
    if not isinstance(value, dict):
        return {place: value}
    return {name: each for key, inner in value.items() for name, each in _leaves(inner, (*place, key)).items()}


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    left = {key: _without_nulls(each) for key, each in value.items()}
    return {key: each for key, each in left.items() if each is not None and each != {}}
