"""`orb_api_key` over the plugin protocol and the real API: its secret, drift, imports, and what replaces it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.domain.ops.access import Role
from tests.support.api.api_server import Served
from tests.support.terraform.core import UNKNOWN, Failed, Plugin, Resource, plugin
from tests.support.terraform.estate_api import api as api
from tests.support.terraform.estate_api import client_of, refused
from tests.support.terraform.estate_api import provider as provider
from tests.support.terraform.scripted_api import NO_ANSWER, Asked, Reply, scripted
from tests.support.terraform.scripted_api import refused as problem

ROLE = Role.ADMIN
KEY = {
    "name": "dashboard", "role": "viewer", "expires_at": "2130-06-01T02:00:00+02:00",
    "networks": ["127.0.0.0/8", "10.1.2.3"],
}  # fmt: skip
PROOF = {"name": "deploy", "role": "operator", "kind": "certificate", "certificate": "dns:Deploy.example.org"}
AT = "/v1/api-keys/dashboard"


@pytest.fixture
def client(api: Served) -> Iterator[httpx.Client]:
    """An admin's client. At its end the keys of the test are revoked."""
    with client_of(api, Role.ADMIN) as made:
        yield made
        for each in made.get("/v1/api-keys").json()["items"]:
            if each["name"] not in ("first-admin", *Role):
                assert made.delete(f"/v1/api-keys/{each['name']}").status_code == 200


def status_of(api: Served, secret: str) -> int:
    return httpx.get(f"{api.url}/v1/crawls", headers={"Authorization": f"Bearer {secret}"}).status_code


def test_secret_is_kept_from_creation_through_every_change(provider: Plugin, client: httpx.Client, api: Served) -> None:
    key = Resource(provider, "orb_api_key")
    assert key.attributes["secret"]["sensitive"] is True
    assert key.plan(**KEY)["secret"] == UNKNOWN
    state = key.apply(**KEY)
    assert state["secret"].startswith(f"orb_{state['key_id']}_")
    assert status_of(api, state["secret"]) == 200
    assert key.changes(**KEY) == set()
    changed = KEY | {"role": "operator", "expires_at": None, "networks": ["127.0.0.1"]}
    assert key.changes(**changed) == {"role", "expires_at", "networks"}
    after = key.apply(**changed)
    assert (after["secret"], after["key_id"], key.replaced) == (state["secret"], state["key_id"], [])
    assert client.get(AT).json()["spec"] == {"role": "operator", "kind": "key", "networks": ["127.0.0.1"]}
    assert key.changes(**changed) == set()
    key.destroy()
    assert status_of(api, state["secret"]) == 401
    assert client.get(AT).status_code == 404


def test_texts_that_mean_the_same_are_no_drift_and_others_are(provider: Plugin, client: httpx.Client) -> None:
    key = Resource(provider, "orb_api_key")
    key.apply(**KEY)
    same = {"role": "viewer", "expires_at": "2130-06-01T00:00:00Z", "networks": ["127.0.0.0/8", "10.1.2.3/32"]}
    assert client.put(AT, json=same).status_code == 200
    assert key.changes(**KEY) == set()
    assert client.put(AT, json=same | {"networks": ["0.0.0.0/0"], "role": "admin"}).status_code == 200
    assert key.changes(**KEY) == {"networks", "role"}
    key.apply(**KEY)
    assert client.get(AT).json()["effective"]["networks"] == ["127.0.0.0/8", "10.1.2.3/32"]


def test_another_name_or_kind_is_another_key(provider: Plugin, client: httpx.Client, api: Served) -> None:
    key = Resource(provider, "orb_api_key")
    first = key.apply(**KEY)
    assert key.plan(**KEY | {"name": "other"})["secret"] == UNKNOWN
    assert key.replaced == ["name"]
    other = key.apply(**KEY | {"name": "other"})
    assert (status_of(api, first["secret"]), status_of(api, other["secret"])) == (401, 200)
    key.plan(**PROOF | {"name": "other"})
    assert key.replaced == ["kind"]
    proof = key.apply(**PROOF | {"name": "other"})
    assert (proof["secret"], status_of(api, other["secret"])) == (None, 401)
    assert client.get("/v1/api-keys/other").json()["effective"]["certificate"] == "dns:deploy.example.org"
    assert key.changes(**PROOF | {"name": "other"}) == set()
    key.plan(**KEY | {"name": "other"})
    assert key.replaced == ["kind"]
    planned = key._planned(key.validate(**KEY | {"name": "other"}), None)
    assert planned["secret"] == UNKNOWN, "Terraform plans the new key while the certificate is there"
    assert status_of(api, key.apply(**KEY | {"name": "other"})["secret"]) == 200


def test_imported_key_has_no_secret_and_no_difference(provider: Plugin, client: httpx.Client) -> None:
    for name, config in (("dashboard", KEY), ("deploy", PROOF)):
        Resource(provider, "orb_api_key").apply(**config)
        imported = Resource(provider, "orb_api_key")
        state = imported.import_(name)
        assert (state["secret"], imported.changes(**config)) == (None, set())
    made = client.post("/v1/api-keys", json={"name": "posted", "role": "viewer"}).json()
    posted = Resource(provider, "orb_api_key")
    assert posted.import_("posted")["key_id"] == made["id"]
    assert posted.changes(name="posted", role="viewer") == set()
    with pytest.raises(Failed, match="There is no api_key 'nowhere'"):
        Resource(provider, "orb_api_key").import_("nowhere")


def test_key_that_exists_is_refused_with_what_becomes_of_the_secret(provider: Plugin, client: httpx.Client) -> None:
    made = client.post("/v1/api-keys", json={"name": "dashboard", "role": "viewer"}).json()
    with pytest.raises(Failed, match=r"exists already.*import orb_api_key\.NAME dashboard.*revoke the key"):
        Resource(provider, "orb_api_key").apply(**KEY)
    assert client.get(AT).json()["id"] == made["id"]


def test_key_of_another_id_is_another_key_and_is_not_revoked(provider: Plugin, client: httpx.Client) -> None:
    key = Resource(provider, "orb_api_key")
    state = key.apply(**KEY)
    assert client.delete(AT).status_code == 200
    other = client.put(AT, json={"role": "viewer"}).json()
    planned = key._planned(key.validate(**KEY | {"role": "operator"}), state)
    with pytest.raises(Failed, match="changed by another client"):
        key.applied(planned)
    key.destroy()
    assert client.get(AT).json()["id"] == other["id"]
    key.state = state
    assert "key_id" in key.changes(**KEY), "it is planned anew"


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"name": "No Name"}, "name"),
        ({"role": "root"}, "role"),
        ({"kind": "password"}, "kind"),
        ({"kind": "certificate"}, "certificate"),
        ({"certificate": "cn:tf"}, "certificate"),
        ({"expires_at": "2130-06-01"}, "expires_at"),
        ({"expires_at": "2130-06-01T00:00:00"}, "expires_at"),
        ({"networks": ["10.1.2.3/8"]}, "networks"),
        ({"networks": ["10.0.0.0/8"] * 33}, "networks"),
        ({"networks": ["example.org"]}, "networks"),
    ],
)
def test_key_that_cannot_be_used_names_its_attribute(provider: Plugin, change: Any, path: str) -> None:
    assert [each for each, _ in refused(Resource(provider, "orb_api_key"), **KEY | change)] == [path]


@pytest.mark.usefixtures("client")
def test_unknown_values_of_any_attribute_are_planned(provider: Plugin) -> None:
    key = Resource(provider, "orb_api_key")
    settable = {name for name, each in key.attributes.items() if each.get("required") or each.get("optional")}
    assert settable == {"name", "role", "kind", "expires_at", "networks", "certificate"}
    for name in settable:
        assert key.plan(**KEY | {name: UNKNOWN})[name] == UNKNOWN
    assert key.plan(**KEY | {"networks": [UNKNOWN, "10.0.0.0/8"]})["networks"] == [UNKNOWN, "10.0.0.0/8"]


def test_operator_cannot_plan_keys_and_is_told_the_role(api: Served, tmp_path: Path, client: httpx.Client) -> None:
    running = plugin(tmp_path, api.environ(Role.OPERATOR), retry_s=5)
    with running as operating, pytest.raises(Failed, match=r"This needs the role admin.*Use a key with that role"):
        Resource(operating, "orb_api_key").apply(**KEY)
    assert client.get(AT).status_code == 404


def test_secret_is_in_the_state_and_no_message(api: Served, tmp_path: Path, client: httpx.Client) -> None:
    """The state is the only place: no diagnostic, no log of the provider, no request but the first answer has it."""
    with plugin(tmp_path, api.environ(Role.ADMIN) | {"TF_LOG": "TRACE"}, retry_s=5) as running:
        key = Resource(running, "orb_api_key")
        secret = key.apply(**KEY)["secret"]
        with pytest.raises(Failed) as failed:
            key.apply(**KEY | {"networks": ["nowhere"]})
        assert key.apply(**KEY | {"role": "operator"})["secret"] == secret
        key.destroy()
    for text in (str(failed.value), running.log(), json.dumps(client.get("/v1/api-keys?revoked=true").json())):
        assert secret.split("_", 2)[2] not in text


def test_lost_answer_of_a_create_is_said_and_makes_no_second_key(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Reply:
        if asked.path.endswith("/plan"):
            return Reply(200, {"action": "create", "changes": [], "warnings": []})
        if len(creates()) == 1:
            return Reply(NO_ANSWER)
        return problem(409, "exists", "this request made the key 'dashboard' before, and its secret is not shown again")

    def creates() -> list[Asked]:
        return [each for each in lost.asked if each.path == "/v1/api-keys"]

    with scripted(answer) as lost, plugin(tmp_path, {"ORB_SERVER": lost.url, "ORB_API_KEY": "orb_x"}) as running:
        with pytest.raises(Failed, match=r"secret is not shown again.*orb ctl keys revoke dashboard"):
            Resource(running, "orb_api_key").apply(**KEY)
        assert len({each.headers["Idempotency-Key"] for each in creates()}) == 1
        assert len(creates()) == 2
