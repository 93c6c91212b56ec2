"""Who may ask for what: every way in, from every side."""

from __future__ import annotations

import pytest

from orchestrator.serve.guard import POLICY, host_name
from orchestrator.serve.limiting import MAX_ADDRESSES, MAX_WRONG, REST_S, WrongLogins
from tests.unit.serve.stage import SECRET, WHERE, add_run, begin, staged

READS = (
    "/",
    "/api/v1/fleet",
    "/api/v1/session",
    "/api/v1/openapi.json",
    "/metrics",
    "/runs/1",
    "/api/v1/runs/1/lines",
)
ACTS = ("/api/v1/runs/1/stop", "/api/v1/runs/1/relaunch")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Listening on loopback, and where others reach it."""
    with (
        staged(tmp_path_factory.mktemp("here")) as here,
        staged(tmp_path_factory.mktemp("away"), reads_freely=False) as away,
    ):
        for stage in (here, away):
            add_run(stage)
            begin(stage)
        yield here, away


@pytest.fixture(autouse=True)
def fresh(both):
    for stage in both:
        stage.parts.rules.wrong._known.clear()


@pytest.fixture
def here(both):
    return both[0]


@pytest.fixture
def away(both):
    return both[1]


@pytest.mark.parametrize("path", READS)
def test_on_loopback_reading_is_free(here, path):
    assert here.client().get(path).status_code == 200


@pytest.mark.parametrize("path", READS)
def test_elsewhere_reading_needs_the_token(away, path):
    client = away.client()
    refused = client.get(path)
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "login_needed"
    assert refused.headers["www-authenticate"].startswith("Bearer")
    assert client.get(path, headers={"authorization": f"Bearer {SECRET}"}).status_code == 200
    assert client.get(path, headers={"authorization": f"bearer  {SECRET} "}).status_code == 200
    assert client.get(path, headers={"authorization": f"Bearer {SECRET}x"}).status_code == 401
    assert client.get(path, headers={"authorization": f"Basic {SECRET}"}).status_code == 401
    assert client.get(path, params={"token": SECRET}).status_code == 401
    assert away.signed_in().get(path).status_code == 200


def test_a_person_without_a_login_is_led_to_it_and_back(away):
    client = away.client(accept="text/html")
    first = client.get("/runs/1/log?attempt=2")
    assert (first.status_code, first.headers["location"]) == (303, "/login?next=/runs/1/log%3Fattempt%3D2")
    asked = client.get(first.headers["location"])
    assert 'value="/runs/1/log?attempt=2"' in asked.text
    done = client.post("/login", data={"token": SECRET, "next": "/runs/1/log?attempt=2"})
    assert (done.status_code, done.headers["location"]) == (303, "/runs/1/log?attempt=2")
    assert client.get(done.headers["location"]).status_code == 200


def test_a_link_on_another_site_leads_in_for_whoever_is_logged_in(away):
    client = away.client(accept="text/html")
    for site in ("cross-site", "same-site"):
        first = client.get("/runs/1", headers={"sec-fetch-site": site})
        assert (first.status_code, "login" in first.text) == (200, False)
        assert '<meta http-equiv="refresh" content="0">' in first.text
    assert client.get("/runs/1", headers={"sec-fetch-site": "same-origin"}).status_code == 303
    assert client.get("/api/v1/fleet", headers={"sec-fetch-site": "cross-site"}).status_code == 401


@pytest.mark.parametrize(
    "there",
    ["//evil.example/", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/a\r\nb: c", ""],
)
def test_a_login_leads_nowhere_else(here, there):
    done = here.client().post("/login", data={"token": SECRET, "next": there})
    assert (done.status_code, done.headers["location"]) == (303, "/")


def test_what_needs_no_login_tells_nothing_of_the_runs(away, monkeypatch):
    client = away.client()
    assert client.get("/login").status_code == 200
    assert client.get("/static/icon.svg").status_code == 200
    assert client.get("/healthz").text == "ok\n"
    monkeypatch.setattr(away.fleet, "fault", RuntimeError("of run-1"))
    assert (client.get("/healthz").status_code, client.get("/healthz").text) == (503, "not well\n")
    assert "run-1" in client.get("/healthz", headers={"authorization": f"Bearer {SECRET}"}).text


@pytest.mark.parametrize(
    "path", ["/static/../guard.py", "/static/..%2f..%2fguard.py", "/login/../api/v1/fleet", "/static"]
)
def test_no_free_path_leads_to_another(away, path):
    answer = away.client().get(path)
    assert answer.status_code in (401, 404)
    assert "Guard" not in answer.text


# -- acts


@pytest.mark.parametrize("path", ACTS)
def test_an_act_needs_the_token_on_loopback_as_well(here, path):
    client = here.client()
    assert client.post(path).status_code == 401
    assert client.post(path, headers={"authorization": "Bearer wrong"}).status_code == 401


@pytest.mark.parametrize("path", ACTS)
def test_a_session_acts_with_its_own_seal_only(here, path):
    client = here.signed_in()
    seal = client.headers.pop("x-csrf-token")
    for word in (None, "", "x" * 64, seal[:-1]):
        refused = client.post(path, headers={} if word is None else {"x-csrf-token": word})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "csrf")
    other = here.signed_in().headers["x-csrf-token"]
    assert other != seal
    assert client.post(path, headers={"x-csrf-token": other}).status_code == 403
    answer = client.post(path, headers={"x-csrf-token": seal})
    assert answer.status_code in (202, 409), "it is begun, or the one before is still under way"


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_an_act_that_another_site_sent_is_refused_whoever_is_logged_in(here, headers):
    client = here.signed_in()
    refused = client.post(ACTS[0], headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "other_site")
    bearer = here.client().post(ACTS[0], headers={"authorization": f"Bearer {SECRET}", **headers})
    assert bearer.status_code == 403
    login = here.client().post("/login", data={"token": SECRET}, headers=headers)
    assert login.status_code == 403
    assert "set-cookie" not in login.headers


def test_a_program_with_the_token_acts_without_a_session(here):
    answer = here.client().post(ACTS[0], headers={"authorization": f"Bearer {SECRET}"})
    assert answer.status_code == 202


def test_what_only_looks_does_nothing(tmp_path):
    with staged(tmp_path, acting=False) as stage:
        add_run(stage)
        begin(stage)
        refused = stage.signed_in().post(ACTS[0])
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "act_refused")
        assert stage.board.told() == []


# -- names of this server


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "box.lan.evil"]
)
def test_a_name_that_was_made_to_lead_here_is_refused(here, host):
    for path in ("/api/v1/fleet", "/login", "/healthz", "/static/icon.svg"):
        refused = here.client().get(path, headers={"host": host})
        assert refused.status_code == 421, path
        assert refused.json()["error"]["code"] == "unknown_host"


@pytest.mark.parametrize(
    "host", ["127.0.0.1:1", "localhost", "LOCALHOST:9000", "[::1]:8765", "10.1.2.3", "box.lan:8765"]
)
def test_its_own_addresses_and_names_are_answered(here, host):
    assert here.client().get("/api/v1/fleet", headers={"host": host}).status_code == 200


def test_the_name_of_a_host_is_without_its_port():
    assert [host_name(each) for each in ("A.b:1", "[::1]:5", "[fe80::1%eth0]", "a.b.", "")] == [
        "a.b", "::1", "fe80::1%eth0", "a.b", "",
    ]  # fmt: skip


# -- logins


def test_a_login_gives_a_cookie_that_is_not_the_token_and_that_scripts_cannot_read(here):
    done = here.client().post("/login", data={"token": f" {SECRET}\n"})
    cookie = done.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie  # plain http on loopback
    assert SECRET not in cookie


def test_a_session_ends_by_logging_out(here):
    client = here.signed_in()
    assert client.get("/api/v1/session").json()["is_signed_in"]
    seal = client.headers.pop("x-csrf-token")
    assert client.post("/logout", data={"csrf": "x"}).status_code == 403
    done = client.post("/logout", data={"csrf": seal})
    assert (done.status_code, done.headers["location"]) == (303, "/login")
    assert not client.get("/api/v1/session").json()["is_signed_in"]


def test_a_wrong_token_is_told_and_many_wrong_ones_are_not_listened_to(here):
    client = here.client(accept="text/html")
    for _ in range(MAX_WRONG):
        wrong = client.post("/login", data={"token": "wrong"})
        assert wrong.status_code == 401
        assert "That is not the token" in wrong.text
    late = client.post("/login", data={"token": SECRET})
    assert late.status_code == 429
    assert 0 < int(late.headers["retry-after"]) <= REST_S
    assert "set-cookie" not in late.headers


def test_a_program_with_an_old_token_does_not_keep_a_person_out(away):
    client = away.client()
    for _ in range(MAX_WRONG):
        assert client.get("/metrics", headers={"authorization": "Bearer old"}).status_code == 401
    late = client.get("/metrics", headers={"authorization": f"Bearer {SECRET}"})
    assert late.status_code == 429
    assert int(late.headers["retry-after"]) > 0
    assert away.signed_in().get("/metrics").status_code == 200


def test_where_the_token_is_kept_is_told_on_this_machine_only(here, away):
    kept = str(here.parts.rules.token.path)
    assert kept in here.client().post("/login", data={"token": "wrong"}).text
    assert "/token" not in away.client().post("/login", data={"token": "wrong"}).text.replace("/token-", "")


def test_wrong_logins_are_counted_by_address_and_forgotten():
    wrong = WrongLogins()
    for _ in range(MAX_WRONG):
        assert wrong.wait_s("a", 100.0) == 0
        wrong.add("a", 100.0)
    assert wrong.wait_s("a", 101.0) == REST_S - 1
    assert wrong.wait_s("b", 101.0) == 0
    assert wrong.wait_s("a", 100.0 + REST_S) == 0
    wrong.add("a", 101.0 + REST_S)
    assert wrong.wait_s("a", 101.0 + REST_S) == 0, "one wrong word after a rest is the first again"
    for number in range(3 * MAX_ADDRESSES):
        wrong.add(str(number), 200.0)
    assert len(wrong._known) == MAX_ADDRESSES


# -- what every answer carries


@pytest.mark.parametrize(
    "path", ["/", "/nowhere", "/api/v1/fleet", "/api/v1/runs/9", "/static/icon.svg", "/login", "/healthz"]
)
def test_every_answer_has_the_policy_and_its_type_is_not_guessed(here, path):
    answer = here.client(accept="text/html").get(path)
    assert answer.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert "cache-control" in answer.headers
    assert "server" not in answer.headers
    assert "access-control-allow-origin" not in answer.headers


def test_a_too_long_form_is_refused(here):
    answer = here.client().post("/login", data={"token": "x" * 10_000}, headers={"origin": WHERE})
    assert answer.status_code == 413
