"""`orb_host_policy`: the delay, the block and the slots of a host, for every crawl."""

from collections.abc import Mapping
from typing import Any, Final

from orb_provider.client import Answer
from orb_provider.fields import Field, FieldType, Shape, Values, computed, is_known, required
from orb_provider.findings import Finding, Refusal, Rejected
from orb_provider.lifecycle import ONLY_NEW, Lifecycle, Plan, Review

_NO_PART: Final = ("", ".", "..")
"""Texts that cannot be a segment of a URL's path."""


class HostPolicy(Lifecycle):
    """The policy of a host. The API shows the host in canonical form, but the state keeps the configuration's text."""

    COLLECTION = "host-policies"
    KEY = "host"
    SHAPE = Shape(
        "host_policy",
        "What holds for a host, for every crawl. It holds before any crawl knows the host, and until it is deleted.",
        (
            required(
                "host",
                FieldType.TEXT,
                "The host, as `name` or `name:port`, without its subdomains. Another host is another policy.",
                replaces=True,
            ),
            Field(
                "delay_s",
                FieldType.NUMBER,
                "The least seconds between an answer of the host and the next request to it, at most 86400. The "
                "longest of all delays counts.",
            ),
            Field(
                "block",
                FieldType.LABELS,
                'Send no request to the host, as `{ reason = "maintenance", until = "2030-01-01T00:00:00Z" }`. Without '
                "`until`: while the policy has the block.",
            ),
            Field(
                "slots",
                FieldType.WHOLE,
                "The most URL shards of the host that may be leased at a time, from 1 to 64. The fewest slots count.",
            ),
            computed("id", FieldType.TEXT, "The host as it is in URLs.", stable=True, api="host"),
            computed("created_at", FieldType.TEXT, "When the policy was created.", stable=True),
        ),
    )

    def same(self, field: Field, known: Any, remote: Any, values: Values) -> bool:
        """Return True if the API's value `remote` means the same as the state's value `known`.

        A host in the state always means the same as the API's host, because it was used to find this policy.
        """
        return super().same(field, known, remote, values) or (field.name == self.KEY and known is not None)

    def plan(self, config: Values, prior: Values | None) -> Plan:
        """Return the plan for a configuration.

        If its host identifies the policy of the state (`prior`), the plan keeps the host as the state has it.
        """
        host = config.get(self.KEY)
        moved = prior is not None and is_known(host) and host != prior[self.KEY]
        if prior is not None and moved and self._client is not None:
            present = self._get(str(host))
            if present is not None and present.body["host"] == prior["id"]:
                config = config | {self.KEY: prior[self.KEY]}
        return super().plan(config, prior)

    def review(self, values: Values) -> Review:
        """Return the errors and warnings of the API's `/plan`.

        If the host is empty, `.`, `..` or contains a slash, send no request and return an error about it.
        """
        host = values[self.KEY]
        if is_known(host) and (host in _NO_PART or "/" in host):
            text = self.SHAPE.by_name[self.KEY].text
            return Review((Finding(f"{host!r} is not a host.", text, (self.KEY,)),))
        return super().review(values)

    def body(self, values: Values, *, creating: bool) -> dict[str, Any]:
        """Return the body of a PUT. It lacks the host, which is in the path."""
        return super().body(values, creating=False)

    def create(self, planned: Values) -> Values:
        """Create the policy, and return its values. Raise Rejected if the host has a policy already."""
        try:
            return self._applied(planned, self._put(planned, ONLY_NEW))
        except Refusal as refusal:
            if refusal.status != 412:
                raise
            host = planned[self.KEY]
            present = self._get(host) if refusal.unsure else None
            if present is not None and self._equal(planned, present):
                return self._applied(planned, present)  # by an earlier attempt whose answer was lost
            remedy = f"Import it with `terraform import orb_host_policy.NAME {host}`, or choose another host."
            raise Rejected(Finding(f"It exists already: the host {host!r} has a policy.", remedy)) from refusal

    def _get(self, key: str) -> Answer | None:
        answer = super()._get(key)
        return None if answer is None else _shown(answer)

    def _put(self, planned: Values, headers: Mapping[str, str]) -> Answer:
        return _shown(super()._put(planned, headers))


def _shown(answer: Answer) -> Answer:
    """Return the answer without the null fields of the block, such as `until`."""
    block = answer.body["block"]
    if block is None:
        return answer
    given = {name: value for name, value in block.items() if value is not None}
    return Answer(answer.status, answer.body | {"block": given}, answer.etag, answer.unsure)
