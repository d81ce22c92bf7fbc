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
"""Values of a configuration by their paths, such as `("worker", "max_visits")`."""


class Config(Lifecycle):
    """Some values of the hot configuration: those that the resource names. It does not change any other value.

    A cluster always has a hot configuration. So a create sets the values, and a delete unsets them.
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
        """Return True if the API's value `remote` means the same as the state's value `known`.

        Only the settings that `known` names are compared. Null and empty settings are ignored.
        """
        return super().same(field, known, remote, values) or (
            field.name == "config" and known is not None and _named(known) == _owned(remote, known)
        )

    def drifted(self, field: Field, known: Any, remote: Any, values: Values) -> Any:
        """Return the settings that `known` names, with their values in `remote`. Return `remote` if `known` is None."""
        if field.name != "config" or known is None:
            return super().drifted(field, known, remote, values)
        return _text(_owned(remote, known))

    def plan(self, config: Values, prior: Values | None) -> Plan:
        """Return the plan for a configuration.

        If its JSON sets the same values as the JSON in the state (`prior`), the plan keeps the text of the state.
        """
        text = config.get("config")
        if prior is not None and is_known(text) and prior["config"] and _named(str(text)) == _named(prior["config"]):
            config = config | {"config": prior["config"]}
        return super().plan(config, prior)

    def planned(self, values: Values) -> dict[str, Any]:
        """Return the API's plan for the cluster's present configuration, changed to these values."""
        present = _named(received_config(self._get(_ID)))
        body = json_text.decode(_text(present | _named(values["config"])))
        plan: dict[str, Any] = self.client.send("POST", self.COLLECTION, "plan", body=body).body
        return plan

    def find(self, text: str) -> Answer | None:
        """Return the hot configuration to import, or None if a named setting is not set.

        The id `config` means all values that are set. Otherwise `text` has the names of settings, separated by commas,
        and only these are imported.
        """
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
        """Set the values, and return them.

        Raise Rejected if another client has already set one of them to another value.
        """
        remedy = "Import it with `terraform import orb_config.NAME {0}`, or run `orb ctl config unset {0}`."
        return self._applied(planned, self._set({}, _named(planned["config"]), remedy))

    def update(self, prior: Values, planned: Values) -> Values:
        """Change the values from `prior` to `planned`, and return the planned values.

        Raise Rejected if another client changed one of them since the plan.
        """
        remedy = "Plan and apply again. A value that is new here: run `orb ctl config unset {0}` before."
        return self._applied(planned, self._set(_named(prior["config"]), _named(planned["config"]), remedy))

    def delete(self, prior: Values) -> None:
        """Unset the values that the resource names, even if another client has changed them."""
        self._set(_named(prior["config"]), {}, None)

    def _set(self, before: _Named, after: _Named, remedy: str | None) -> Answer:
        """Set the settings of `after`, and unset the settings that only `before` names, in one request.

        Return the answer. If another client has changed one of these settings to a value that is in neither `before`
        nor `after`, raise Rejected with the advice `remedy`. If `remedy` is None, overwrite this value too.
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
    """Return the hot configuration of an answer as JSON text."""
    return json_text.encode(answer.body["config"])


def _foreign(name: tuple[str, ...], value: Any, remedy: str) -> Finding:
    """Return the error for a setting that another client has changed.

    `value` is its present value, None if it is unset.
    """
    now = "is not set any more" if value is None else f"is {json_text.encode(value)} in the cluster already"
    dotted = ".".join(name)
    return Finding(f"`{dotted}` {now}: another client changed it.", remedy.format(dotted), ("config",))


def _named(text: str) -> Any:
    """Return the values that are set in a configuration in JSON, by path.

    A path is a tuple, such as `("worker", "max_visits")`. Return the text itself if it is not JSON.
    """
    try:
        return _leaves(_without_nulls(json_text.decode(text)))
    except ValueError:
        return text


def _owned(remote: str, known: str) -> Any:
    """Return the values that `remote` has for the settings that `known` names, by path.

    `remote` and `known` are configurations in JSON. A setting that `remote` does not set is left out. Return None if
    `known` is not JSON.
    """
    named, present = _named(known), _named(remote)
    return {name: present[name] for name in named if name in present} if isinstance(named, dict) else None


def _text(values: _Named) -> str:
    """Return a configuration with these values as JSON text. Leave out a value that is None."""
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
