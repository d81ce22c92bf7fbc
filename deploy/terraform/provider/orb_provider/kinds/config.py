"""`orb_config`: the whole hot configuration of a cluster."""

from typing import Any, Final

from orb_provider import json_text
from orb_provider.client import Answer
from orb_provider.fields import Field, FieldType, Shape, Values, computed, is_known, required
from orb_provider.findings import Finding, Refusal, Rejected
from orb_provider.lifecycle import Lifecycle, Plan

_ID: Final = "config"
_ATTEMPTS: Final = 5


class Config(Lifecycle):
    """The hot configuration, of which a cluster has one. It exists always; deleting it restores all defaults."""

    COLLECTION = "config"
    KEY = "id"
    WHOLE = "config"
    SHAPE = Shape(
        "config",
        "The whole hot configuration of the cluster, of which there is one. Deleting it gives every setting the value "
        "that the members were started with.",
        (
            required(
                "config",
                FieldType.JSON,
                "The configuration as JSON: use `jsonencode`. Settings that are left out have the values that each "
                "member was started with.",
            ),
            computed("id", FieldType.TEXT, "Always `config`.", stable=True),
            computed("revision", FieldType.WHOLE, "The revision of the configuration."),
        ),
    )

    def same(self, field: Field, known: Any, remote: Any, values: Values) -> bool:
        """Compare configurations without the settings that are null or empty."""
        return super().same(field, known, remote, values) or (
            field.name == "config" and known is not None and _pruned(known) == _pruned(remote)
        )

    def plan(self, config: Values, prior: Values | None) -> Plan:
        """Keep the text of the state if the new text sets the same."""
        text = config.get("config")
        if prior is not None and is_known(text) and prior["config"] and _pruned(str(text)) == _pruned(prior["config"]):
            config = config | {"config": prior["config"]}
        return super().plan(config, prior)

    def body(self, values: Values, *, creating: bool) -> dict[str, Any]:
        body: dict[str, Any] = json_text.decode(values["config"])
        return body

    def find(self, text: str) -> Answer | None:
        """Return the configuration, by the id `config` only."""
        return self._get(text) if text == _ID else None

    def create(self, planned: Values) -> Values:
        """Set the configuration, if nothing else set another one."""
        present = self._get(_ID)
        if _pruned(received_config(present)) not in ({}, _pruned(planned["config"])):
            remedy = "Import it with `terraform import orb_config.NAME config`, so that a plan shows the difference."
            raise Rejected(Finding("The cluster has another configuration already.", remedy))
        return self.update({"id": _ID, "config": received_config(present), "revision": None}, planned | {"id": _ID})

    def delete(self, prior: Values) -> None:
        """Set the empty configuration."""
        for _ in range(_ATTEMPTS):
            try:
                self._put(prior | {"config": "{}"}, self._get(_ID).etag)
                return
            except Refusal as refusal:
                if refusal.status != 412:
                    raise
        raise Rejected(Finding("It is changed by other clients all the time.", "Apply again later."))

    def _get(self, key: str) -> Answer:
        answer = self.client.get(self.COLLECTION)
        shown = answer.body | {"id": _ID, "config": _without_nulls(answer.body["config"])}
        return Answer(answer.status, shown, answer.etag, answer.unsure)

    def _put(self, planned: Values, etag: str | None) -> Answer:
        headers = {} if etag is None else {"If-Match": etag}
        answer = self.client.send("PUT", self.COLLECTION, body=self.body(planned, creating=False), headers=headers)
        return Answer(answer.status, answer.body | {"id": _ID}, answer.etag, answer.unsure)


def received_config(answer: Answer) -> str:
    """Return the configuration of an answer as JSON."""
    return json_text.encode(answer.body["config"])


def _pruned(text: str) -> Any:
    """Return a configuration without what sets nothing. Return a text that is no JSON as it is."""
    try:
        return _without_nulls(json_text.decode(text))
    except ValueError:
        return text


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    left = {key: _without_nulls(each) for key, each in value.items()}
    return {key: each for key, each in left.items() if each is not None and each != {}}
