"""What is asked again, of whom, and what is not: nothing that may have been done is done twice."""

import httpx
import pytest

from cli.ctl.client import AttemptFailure, Client, path, waits
from cli.ctl.contexts import Access
from cli.ctl.problems import Refusal
from cli.terminal.exits import Environment, Failed
from tests.support.api.scripted_masters import Masters, listing, problem

REFUSED = httpx.ConnectError("Connection refused")
BROKEN = httpx.ReadError("cut")
OK = httpx.Response(200, json={"ok": True}, headers={"ETag": '"7-1"'})


def test_unreachable_master_is_skipped_for_reads_and_writes() -> None:
    for method, repeatable in (("GET", True), ("POST", False)):
        masters = Masters([REFUSED, OK], count=2)
        answer = masters.client().ask(method, "/v1/x", repeatable=repeatable)
        assert (answer.body, answer.etag, answer.unsure) == ({"ok": True}, '"7-1"', False)
        assert masters.told == [f"m1 {method} /v1/x", f"m2 {method} /v1/x"]
        assert masters.now == 0


def test_lost_connection_is_reported_without_the_full_stop_of_its_error() -> None:
    disconnected = httpx.RemoteProtocolError("Server disconnected without sending a response.")
    masters = Masters(lambda _: disconnected)
    with pytest.raises(Environment, match=r"^http://m1 closed the connection \(Server [a-z ]+ response\)\.$"):
        masters.client().get("/v1/x")
    with pytest.raises(Failed, match=r" response\): the change may have been made"):
        masters.client().ask("POST", "/v1/x", repeatable=False)
    tls = Client(
        Access(("https://m1",), "k"),
        patience_s=0.0,
        note=masters.notes.append,
        transport=httpx.MockTransport(masters._respond),
        sleep=lambda _: None,
        now=lambda: 0.0,
    )
    with tls, pytest.raises(Environment, match=r"\(Server [a-z ]+ response; if it requires a certificate, set "):
        tls.get("/v1/x")


def test_the_master_that_answered_is_asked_first_from_then_on() -> None:
    masters = Masters([REFUSED, OK, OK], count=2)
    client = masters.client()
    client.get("/v1/x")
    client.get("/v1/y")
    assert masters.told[-1] == "m2 GET /v1/y"


def test_no_reachable_master_ends_command_and_names_them_all() -> None:
    masters = Masters([REFUSED, httpx.ConnectTimeout("")], count=2)
    with pytest.raises(Environment, match=r"http://m1 \(Connection refused\); http://m2 \(it does not answer\)"):
        masters.client().get("/v1/x")
    assert masters.now == 0


def test_write_with_lost_answer_is_repeated_only_if_harmless() -> None:
    masters = Masters([BROKEN], count=2)
    with pytest.raises(Failed, match="the change may have been made"):
        masters.client().ask("POST", "/v1/x", repeatable=False)
    masters = Masters([BROKEN, OK], count=2)
    assert masters.client().ask("POST", "/v1/x").unsure
    assert masters.told == ["m1 POST /v1/x", "m2 POST /v1/x"]


@pytest.mark.parametrize("status", [502, 503, 504])
def test_without_leader_next_master_is_asked_after_advised_time(status: int) -> None:
    no_leader = problem(status, "no-leader", headers={"Retry-After": "2"})
    masters = Masters([no_leader, OK], count=2)
    assert masters.client().get("/v1/x").body == {"ok": True}
    assert (masters.now, [each.url.host for each in masters.asked]) == (2.0, ["m1", "m2"])
    assert len(masters.notes) == 1
    masters = Masters([no_leader], count=2)
    with pytest.raises(Refusal) as refused:
        masters.client().ask("POST", "/v1/x", repeatable=False)
    assert refused.value.problem.kind == "no-leader"


def test_too_many_requests_waits_at_same_master_also_for_writes() -> None:
    masters = Masters([problem(429, "busy", headers={"Retry-After": "7"}), OK], count=2)
    answer = masters.client().ask("POST", "/v1/x", repeatable=False)
    assert (answer.unsure, masters.now, [each.url.host for each in masters.asked]) == (False, 7.0, ["m1", "m1"])


def test_patience_ends_before_a_wait_that_would_outlast_it() -> None:
    masters = Masters([problem(429, "busy", headers={"Retry-After": "7"})] * 3, patience_s=15)
    with pytest.raises(Refusal):
        masters.client().get("/v1/x")
    assert (masters.now, len(masters.asked)) == (14.0, 3)


def test_waits_grow_where_the_server_names_none_and_stay_bounded() -> None:
    found = [waits(AttemptFailure.UNSURE, repeatable=True, attempt=n, asked_s=None, left_s=99) for n in range(1, 8)]
    assert found == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert waits(AttemptFailure.UNSURE, repeatable=False, attempt=1, asked_s=1, left_s=99) is None
    assert waits(AttemptFailure.REFUSED, repeatable=False, attempt=1, asked_s=1, left_s=99) == 1


def test_statuses_that_the_caller_deals_with_are_given_back_at_once() -> None:
    masters = Masters([problem(429, "busy", durable_lines=3)])
    with pytest.raises(Refusal) as refused:
        masters.client().ask("POST", "/v1/x", given_back=(429,))
    assert (refused.value.problem.durable_lines, masters.now) == (3, 0.0)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 412, 422, 500])
def test_other_refusals_are_final(status: int) -> None:
    masters = Masters([problem(status, "x")], count=2)
    with pytest.raises(Refusal):
        masters.client().get("/v1/x")
    assert len(masters.asked) == 1


def test_a_list_is_followed_to_its_end_or_its_limit() -> None:
    def pages(request: httpx.Request) -> httpx.Response:
        begin = int(request.url.params.get("cursor", 0))
        max_count = int(request.url.params["limit"])
        found = [{"n": n} for n in range(begin, min(begin + max_count, 1200))]
        return listing(found, str(begin + max_count) if begin + max_count < 1200 else None)

    masters = Masters(pages)
    assert [item["n"] for item in masters.client().items("/v1/x")] == list(range(1200))
    assert [each.url.params["limit"] for each in masters.asked] == ["500"] * 3
    masters = Masters(pages)
    assert [item["n"] for item in masters.client().items("/v1/x", {"state": "done"}, limit=700)] == list(range(700))
    assert [each.url.params["limit"] for each in masters.asked] == ["500", "200"]
    assert {each.url.params["state"] for each in masters.asked} == {"done"}


def test_short_and_empty_pages_are_no_end() -> None:
    masters = Masters([listing([], "a"), listing([{"n": 1}], "b"), listing([])])
    assert list(masters.client().items("/v1/x")) == [{"n": 1}]


def test_the_key_goes_with_every_request_and_is_shown_nowhere() -> None:
    masters = Masters([OK], key="orb_secret")
    client = masters.client()
    client.get("/v1/x")
    assert masters.asked[0].headers["authorization"] == "Bearer orb_secret"
    assert "secret" not in f"{client!r} {Access(('http://m1',), 'orb_secret')!r}"


def test_what_is_no_json_is_said_to_come_from_no_master() -> None:
    with pytest.raises(Environment, match="did not answer with JSON, so it is not an Orbweaver API"):
        Masters([httpx.Response(200, text="<html>")]).client().get("/v1/x")


def test_where_nobody_answers_it_is_said_what_to_look_at() -> None:
    with pytest.raises(Environment) as ended:
        Masters([REFUSED]).client().get("/v1/x")
    assert str(ended.value) == (
        "no master answers at http://m1 (Connection refused): is `orb up` running? "
        "set another with --server or ORB_SERVER."
    )


def test_what_is_no_list_and_what_leads_elsewhere_is_said() -> None:
    with pytest.raises(Environment, match="did not answer with a list"):
        list(Masters([OK]).client().items("/v1/x"))
    moved = httpx.Response(308, headers={"Location": "https://other/"})
    with pytest.raises(Environment, match="http://m1 redirects to https://other/"):
        Masters([moved]).client().get("/v1/x")


@pytest.mark.parametrize("status", [300, 304, 308])
def test_redirect_without_location_is_one_clear_sentence(status: int) -> None:
    with pytest.raises(Environment) as ended:
        Masters([httpx.Response(status)]).client().get("/v1/x")
    assert str(ended.value) == (
        f"http://m1 answered with status {status}, so it is not an Orbweaver API; "
        "set another with --server or ORB_SERVER."
    )


def test_names_are_quoted_into_paths() -> None:
    assert path("crawls", "a b?c#d%", "urls") == "/v1/crawls/a%20b%3Fc%23d%25/urls"
