"""The accounts of NATS: the table of the code, the file of compose.yaml and the documentation are one."""

import pytest
import yaml

from shared.adapters.nats.accounts import NatsUser, accounts_of
from shared.wire.subjects import inbox
from tests.support.nats_accounts import BY_CERTIFICATE, DEPLOYED, PAGE, ROOT, deployed, page


def test_deployed_accounts_and_documentation_are_those_of_the_code() -> None:
    remedy = "run `.venv/bin/python -m tests.support.nats_accounts`"
    assert DEPLOYED.read_text("utf-8") == deployed(), remedy
    assert PAGE.read_text("utf-8") == page(), remedy


def test_every_member_of_compose_has_a_user_of_its_role() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))["services"]
    members = {name for name in services if name.partition("-")[0] in ("master", "worker")}
    assert {user.name for user in BY_CERTIFICATE} == members
    assert {user.name for user in BY_CERTIFICATE if user.pool} == {name for name in members if name[0] == "w"}


def test_pool_has_nothing_of_another_pool() -> None:
    accounts = accounts_of([NatsUser("m"), NatsUser("a", "default", "a"), NatsUser("b", "eu", "b")])
    assert accounts.keys() == {"ORB", "WORKERS_default", "WORKERS_eu"}
    assert "VISITS_eu" not in repr(accounts["WORKERS_default"])
    for export in accounts["ORB"]["exports"]:
        own = "VISITS_" in repr(export)
        assert len(export["accounts"]) == (1 if own else 2)
        assert not own or f"VISITS_{export['accounts'][0].removeprefix('WORKERS_')}.visits" in export["service"]


def test_passwords_are_in_no_text_of_a_user() -> None:
    assert "hush" not in repr(NatsUser("m", password="hush"))


@pytest.mark.parametrize("names", [("a.b", "a"), ("a.b", "a_b"), ("a.b", "a-b"), ("a.b", "b.a"), ("a.b.c", "a.bc")])
def test_no_inbox_is_within_that_of_another_name(names: tuple[str, str]) -> None:
    one, other = (inbox(name).split(".") for name in names)
    assert len(one) == len(other) == 2
    assert one != other
