"""`orb_exclusion`: a host, a URL prefix or an address range that no crawl requests."""

from typing import Any

from orb_provider.client import Answer
from orb_provider.fields import Field, FieldType, Shape, Values, computed, is_known, required
from orb_provider.findings import Refusal
from orb_provider.lifecycle import Lifecycle, Plan


class Exclusion(Lifecycle):
    """An exclusion. The API shows its target in canonical form, but the state keeps the text of the configuration."""

    COLLECTION = "exclusions"
    KEY = "id"
    SHAPE = Shape(
        "exclusion",
        "A host, a URL prefix or an address range that no crawl requests.",
        (
            required(
                "target",
                FieldType.TEXT,
                "A host with its subdomains, a URL prefix, an address or an address range. Another target is another "
                "exclusion.",
                replaces=True,
            ),
            required("reason", FieldType.TEXT, "Why nothing of it is crawled."),
            Field("requested_by", FieldType.TEXT, "Who asked for it.", default=""),
            Field(
                "until",
                FieldType.TIME,
                "When the exclusion ends, as a time with a zone. Without it, it never ends by itself.",
            ),
            Field(
                "withdraw",
                FieldType.SWITCH,
                "Also withdraw what is stored of it. That is not undone when the exclusion ends.",
                default=False,
            ),
            computed("id", FieldType.TEXT, "The exclusion's number.", stable=True),
            computed("kind", FieldType.TEXT, "The form of the target.", stable=True),
            computed("created_at", FieldType.TEXT, "When the exclusion was created.", stable=True),
        ),
    )

    def same(self, field: Field, known: Any, remote: Any, values: Values) -> bool:
        """Return True if the API's value `remote` means the same as the state's value `known`.

        A target may be written in several ways. The target `known` means the same as `remote` if the API finds by it
        the exclusion that `values` describe.
        """
        if super().same(field, known, remote, values) or field.name != "target" or known is None:
            return super().same(field, known, remote, values)
        return bool(self._id_of(known) == values["id"])

    def plan(self, config: Values, prior: Values | None) -> Plan:
        """Return the plan for a configuration.

        If its target identifies the exclusion of the state (`prior`), the plan keeps the target as the state has it.
        """
        target = config.get("target")
        moved = prior is not None and is_known(target) and target != prior["target"]
        if prior is not None and moved and self._client is not None and self._id_of(str(target)) == prior["id"]:
            config = config | {"target": prior["target"]}
        return super().plan(config, prior)

    def body(self, values: Values, *, creating: bool) -> dict[str, Any]:
        """Return the body of a POST (`creating` True) or a PUT (False).

        The body of a PUT lacks the target, which cannot change.
        """
        body = super().body(values, creating=creating)
        return body if creating else {name: value for name, value in body.items() if name != "target"}

    def planned(self, values: Values) -> dict[str, Any]:
        """Return the API's plan for these values. The API finds the exclusion by the target in `values`."""
        body = self.body(values, creating=True)
        plan: dict[str, Any] = self.client.send("POST", self.COLLECTION, "plan", body=body).body
        return plan

    def find(self, text: str) -> Answer | None:
        """Return the exclusion to import, None if there is none. `text` is its number or its target."""
        key = text if text.isdigit() else self._id_of(text)
        return None if key is None else super().find(key)

    def _id_of(self, target: str) -> str | None:
        """Return the id of the exclusion with this target.

        Return None if there is none, or if the target is not valid.
        """
        try:
            found = self.client.get(self.COLLECTION, query={"target": target}).body["items"]
        except Refusal as refusal:
            if refusal.status != 422:
                raise
            return None
        return str(found[0]["id"]) if found else None
