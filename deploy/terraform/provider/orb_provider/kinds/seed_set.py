"""`orb_seed_set`: a named set of seeds of a crawl."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from orb_provider import json_text
from orb_provider.client import Answer
from orb_provider.fields import Field, FieldType, Shape, Values, computed, is_known, required
from orb_provider.findings import Finding, Refusal, Rejected
from orb_provider.lifecycle import ONLY_NEW, Lifecycle, Plan, Review, older

WAIT_S: Final = 300
_NO_PART: Final = ("", ".", "..")
"""Texts that cannot be a segment of a URL's path."""


class SeedSet(Lifecycle):
    """A seed set of a crawl. Its id is `crawl/name`: the names of the crawl and of the set."""

    COLLECTION = "seed-sets"
    KEY = "id"
    LACKS = "The seed set cannot be put as things are."
    PARTS: ClassVar[Mapping[str, str]] = {"path.name": "crawl", "path.set": "name"}
    SHAPE = Shape(
        "seed_set",
        "A named set of seeds of a crawl. A URL that leaves the set is withdrawn, unless another set has it, a page "
        "links to it, the spec has it, or an upload added it.",
        (
            required("crawl", FieldType.TEXT, "The crawl's name. In another crawl it is another set.", replaces=True),
            required(
                "name",
                FieldType.TEXT,
                "The set's name: lower-case letters, digits and inner hyphens, at most 63. Another name is another "
                "set.",
                replaces=True,
            ),
            required(
                "seeds",
                FieldType.TEXTS,
                'The seeds, at most 10000. Each is a URL, or `jsonencode({ url = "https://a.example/", priority = 5 })`'
                " with priority, labels or source.",
            ),
            Field(
                "wait_s",
                FieldType.WHOLE,
                "The most seconds to wait until a change is applied: added seeds are in the queue then, and withdrawn "
                "ones have left it. 0: do not wait.",
                default=WAIT_S,
                local=True,
            ),
            computed("id", FieldType.TEXT, "The crawl and the name, as `crawl/name`.", stable=True),
            computed("created_at", FieldType.TEXT, "When the set was created.", stable=True),
        ),
    )

    def same(self, field: Field, known: Any, remote: Any, values: Values) -> bool:
        """Return True if the API's value `remote` means the same as the state's value `known`.

        Seeds that are JSON are compared as values, not as texts.
        """
        if field.name != "seeds" or not isinstance(known, list) or not is_known(known):
            return super().same(field, known, remote, values)
        return bool([_seed(each) for each in known] == remote)

    def drifted(self, field: Field, known: Any, remote: Any, values: Values) -> Any:
        """Return the value that the state gets for the API's value `remote`.

        A seed that is an object becomes JSON text.
        """
        if field.name != "seeds":
            return super().drifted(field, known, remote, values)
        return [each if isinstance(each, str) else json_text.encode(each) for each in remote]

    def plan(self, config: Values, prior: Values | None) -> Plan:
        """Return the plan for a configuration.

        If its seeds mean the same as those of the state (`prior`), the plan keeps the texts of the state.
        """
        seeds = config.get("seeds")
        if prior is not None and isinstance(seeds, list) and is_known(seeds) and isinstance(prior["seeds"], list):
            try:
                alike = [_seed(each) for each in seeds] == [_seed(each) for each in prior["seeds"]]
            except ValueError:
                alike = False
            config = config | {"seeds": prior["seeds"]} if alike else config
        return super().plan(config, prior)

    def review(self, values: Values) -> Review:
        """Return the errors and warnings of the API's `/plan`.

        If a seed is not JSON, or if a name cannot be part of a path, send no request and return only errors about
        these.
        """
        seeds = values["seeds"]
        findings: list[Finding] = []
        for number, seed in enumerate(seeds if isinstance(seeds, list) else ()):
            try:
                _seed(seed if isinstance(seed, str) else "")
            except ValueError as error:
                text = self.SHAPE.by_name["seeds"].text
                findings.append(Finding(f"seeds[{number}] is not JSON: {error}.", text, ("seeds",)))
        findings += [
            Finding(f"{values[name]!r} is not the name of a {what}.", self.SHAPE.by_name[name].text, (name,))
            for name, what in (("crawl", "crawl"), ("name", "seed set"))
            if is_known(values[name]) and (values[name] in _NO_PART or "/" in values[name])
        ]
        return Review(tuple(findings)) if findings else super().review(values)

    def planned(self, values: Values) -> dict[str, Any]:
        """Return the API's plan for these values."""
        place = _place(f"{values['crawl']}/{values['name']}")
        body = self.body(values, creating=False)
        plan: dict[str, Any] = self.client.send("POST", *place, "plan", body=body).body
        return plan

    def body(self, values: Values, *, creating: bool) -> dict[str, Any]:
        """Return the body of a PUT: the seeds. The crawl and the name are in the path."""
        return {"seeds": [_seed(each) for each in values["seeds"]]}

    def find(self, text: str) -> Answer | None:
        """Return the seed set to import, None if there is none.

        Raise Rejected if `text` is not of the form `crawl/name`.
        """
        if text.count("/") != 1:
            raise Rejected(Finding(f"{text!r} is no id of a seed set.", "Write it as CRAWL/SET."))
        return self._get(text)

    def create(self, planned: Values) -> Values:
        """Create the set, wait until it is applied, and return its values.

        Raise Rejected if it exists with other seeds. An existing set with the same seeds is accepted, since an
        interrupted apply may have created it.
        """
        planned = planned | {"id": f"{planned['crawl']}/{planned['name']}"}
        try:
            return self._applied(planned, self._put(planned, ONLY_NEW))
        except Refusal as refusal:
            if refusal.status != 412:
                raise
            present = self._get(planned["id"])
            if present is not None and self._equal(planned, present):
                self._wait(present, planned)
                return self._applied(planned, present)
            remedy = f"Import it with `terraform import orb_seed_set.NAME {planned['id']}`, or choose another name."
            finding = Finding(f"It exists already: the seed set {planned['id']!r} has other seeds.", remedy)
            raise Rejected(finding) from refusal

    def delete(self, prior: Values) -> None:
        """Delete the set, and wait until its seeds are withdrawn. Do nothing if it does not exist."""
        try:
            answer = self.client.send("DELETE", *_place(prior["id"]))
        except Refusal as refusal:
            if refusal.status != 404:
                raise
        else:
            self._wait(answer, prior)

    def _get(self, key: str) -> Answer | None:
        """Return the set with the id `key`, None if it does not exist.

        Raise Rejected if the crawl exists but the API has no seed sets, because the master is of an older release.
        """
        place = _place(key)
        try:
            return _shown(self.client.get(*place), key)
        except Refusal as refusal:
            if refusal.status not in (404, 422):
                raise
            try:
                self.client.get(*place[:2])
            except Refusal:
                return None
            try:
                self.client.get(*place[:3], query={"limit": 1})
            except Refusal as whole:
                if whole.status != 404:
                    raise
                raise older("/v1/crawls/{name}/seed-sets") from refusal
            return None

    def _put(self, planned: Values, headers: Mapping[str, str]) -> Answer:
        body = self.body(planned, creating=False)
        try:
            answer = self.client.send("PUT", *_place(planned["id"]), body=body, headers=headers)
        except Refusal as refusal:
            raise refusal.renamed(self.PARTS) from refusal
        self._wait(answer, planned)
        return _shown(answer, planned["id"])

    def _wait(self, answer: Answer, values: Values) -> None:
        """Wait until all partitions have applied the command that `answer` names. With `wait_s` 0, do not wait.

        Raise Rejected after `wait_s` seconds. The change is stored then, and is applied later.
        """
        command, seconds = str(answer.body["command"]), int(values["wait_s"] or 0)
        if seconds and not self.client.until_applied(command, seconds):
            remedy = "It is stored, and goes on. Apply again, or set a longer `wait_s`."
            raise Rejected(Finding(f"The change was not applied within {seconds} s.", remedy, ("wait_s",)))


def _place(key: str) -> tuple[str, str, str, str]:
    crawl, _, name = key.partition("/")
    return "crawls", crawl, "seed-sets", name


def _shown(answer: Answer, key: str) -> Answer:
    """Return the answer with the fields `crawl` and `id` added, which only the path of the request has."""
    body = answer.body | {"crawl": key.partition("/")[0], "id": key}
    return Answer(answer.status, body, answer.etag, answer.unsure)


def _seed(text: str) -> Any:
    """Return a seed as the API has it: a URL, or the decoded JSON of a text that begins with `{`.

    Raise ValueError if such a text is not JSON.
    """
    return json_text.decode(text) if text.lstrip()[:1] == "{" else text
