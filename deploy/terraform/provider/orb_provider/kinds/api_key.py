"""`orb_api_key`: an API key, or an identity that a client certificate alone proves."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from ipaddress import ip_network
from typing import Any, ClassVar, Final

from orb_provider.client import Answer
from orb_provider.fields import Field, FieldType, Shape, Values, computed, is_known, required
from orb_provider.findings import Finding, Refusal, Rejected
from orb_provider.lifecycle import Lifecycle, Review, seen

_ATTEMPTS: Final = 5
_DEFAULTS: Final[Values] = {"kind": "key", "expires_at": None, "networks": [], "certificate": None}
_SECRET: Final = "secret"
_ID: Final = "key_id"


class ApiKey(Lifecycle):
    """An API key. Only the answer that creates it contains its secret, which is then kept in the state.

    If the key's name now belongs to a key with another id, the secret in the state is not valid. The key of the state
    is then treated as deleted.
    """

    COLLECTION = "api-keys"
    PARTS: ClassVar[Mapping[str, str]] = {"path.key_name": "name"}
    SHAPE = Shape(
        "api_key",
        "An API key with its role, end, networks and client certificate, or a client certificate that needs no key. "
        "Only an admin manages them.",
        (
            required(
                "name",
                FieldType.TEXT,
                "The key's name: lower-case letters, digits and inner hyphens, at most 63. Another name is another "
                "key.",
                replaces=True,
            ),
            required("role", FieldType.TEXT, "`viewer`, `operator` or `admin`."),
            Field(
                "kind",
                FieldType.TEXT,
                "`key`: a secret proves the identity, together with `certificate` if one is given. `certificate`: the "
                "client certificate alone proves it, and there is no secret. Another kind is another key.",
                default="key",
                replaces=True,
            ),
            Field(
                "expires_at",
                FieldType.TIME,
                "From then on the key is refused, as a time with a zone. Without it, it never ends by itself.",
            ),
            Field(
                "networks",
                FieldType.TEXTS,
                "Networks in CIDR notation from which the key is accepted. Without them: from everywhere.",
            ),
            Field(
                "certificate",
                FieldType.TEXT,
                "The client certificate with which the key is accepted: `sha256:` and its fingerprint, or `dns:`, "
                "`uri:` or `email:` and one of its subject alternative names.",
            ),
            computed("id", FieldType.TEXT, "The key's name.", stable=True, api="name"),
            computed(_ID, FieldType.TEXT, "The key's id, which the secret contains.", stable=True, api="id"),
            computed(
                _SECRET,
                FieldType.TEXT,
                "The secret: the API key to send. It is known from the creation on, and null after an import and for a "
                "certificate.",
                stable=True,
                sensitive=True,
                api="key",
            ),
            computed("created_at", FieldType.TEXT, "When the key was created.", stable=True),
        ),
    )

    def same(self, field: Field, known: Any, remote: Any, values: Values) -> bool:
        """Return True if the API's value `remote` means the same as the state's value `known`.

        Networks and certificates are compared in canonical form.
        """
        if super().same(field, known, remote, values):
            return True
        if not known or not remote or not is_known(known):
            return False
        match field.name:
            case "networks":
                return _networks(known) == _networks(remote)
            case "certificate":
                return _certificate(known) == _certificate(remote)
            case _:
                return False

    def review(self, values: Values) -> Review:
        """Return the errors and warnings of the API's `/plan`.

        If the planned `kind` is `key`, leave out errors about `kind`. The API refuses to change a key to this kind.
        Terraform does not change the key, but replaces it by a new one.
        """
        review = super().review(values)
        if values["kind"] != "key":
            return review
        return replace(review, findings=tuple(each for each in review.findings if each.path != ("kind",)))

    def create(self, planned: Values) -> Values:
        """Create the key, and return its values with the secret.

        Raise Rejected if the key exists. The error advises the user to revoke the key and to apply again.
        """
        try:
            return super().create(planned)
        except Rejected as rejected:
            if not isinstance(rejected.__cause__, Refusal):
                raise
            revoke = f"`orb ctl keys revoke {planned[self.KEY]}`"
            lost = f" An imported key has no secret in the state: revoke the key ({revoke}) and apply again to get one."
            raise Rejected(*(replace(each, detail=each.detail + lost) for each in rejected.findings)) from rejected

    def read(self, state: Values) -> Values | None:
        """Return the values that the API has now.

        Return None if the key was revoked, or if its name belongs to a key with another id.
        """
        values = super().read(state)
        return values if values is None or state[_ID] in (None, values[_ID]) else None

    def delete(self, prior: Values) -> None:
        """Revoke the key. Do nothing if it is revoked already, even if another key has the same name now."""
        name = str(prior[self.KEY])
        for _ in range(_ATTEMPTS):
            present = self._get(name)
            if present is None or present.body["id"] != prior[_ID]:
                return
            try:
                self.client.send("DELETE", self.COLLECTION, name, headers=seen(present))
            except Refusal as refusal:
                if refusal.status not in (404, 412):
                    raise
            else:
                return
        raise Rejected(Finding("It is changed by other clients all the time.", "Apply again later."))

    def _equal(self, values: Values, answer: Answer) -> bool:
        return bool(answer.body["id"] == values[_ID]) and super()._equal(values, answer)

    def _get(self, key: str) -> Answer | None:
        answer = super()._get(key)
        return None if answer is None else _shown(answer)

    def _put(self, planned: Values, headers: Mapping[str, str]) -> Answer:
        return _shown(super()._put(planned, headers))

    def _read(self, state: Values, answer: Answer) -> Values:
        return super()._read(state, answer) | {_SECRET: state[_SECRET]}

    def _applied(self, planned: Values, answer: Answer) -> Values:
        kept = {_SECRET: planned[_SECRET]} if is_known(planned[_SECRET]) else {}
        return super()._applied(planned, answer) | kept


def _shown(answer: Answer) -> Answer:
    """Return the answer with the fields of its `spec`, or their defaults, at the top level."""
    return Answer(answer.status, answer.body | _DEFAULTS | answer.body["spec"], answer.etag, answer.unsure)


def _networks(texts: Iterable[str]) -> list[str]:
    """Return networks in canonical form, without duplicates. A text that is no network is kept as it is."""
    return list(dict.fromkeys(map(_network, texts)))


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError:
        return text


def _certificate(text: str) -> str:
    """Return the name of a certificate, such as `dns:host.example`, in canonical form, for comparison."""
    kind, _, name = text.partition(":")
    if kind == "sha256":
        name = name.replace(":", "")
    return text if kind == "uri" else f"{kind}:{name.lower()}"
