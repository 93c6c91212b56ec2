"""The pages as a browser gets them: nothing inline, nothing from elsewhere, cached by content."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from orchestrator.serve.assets import FOLDER, Assets
from tests.unit.serve.stage import HOSTILE, add_run, begin, staged

PAGES = ("/", "/login", "/runs/1", "/runs/1/log", "/runs/99", "/nowhere")


class Reader(HTMLParser):
    """The tags of a page; a script with text, or an attribute with code, is what the policy forbids."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline: list[str] = []
        self._in: str | None = None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in = tag
        self.tags.append((tag, dict(attrs)))
        self.inline += [f"{tag} {name}" for name, _ in attrs if name.startswith("on") or name == "style"]

    def handle_endtag(self, tag: str) -> None:
        self._in = None

    def handle_data(self, data: str) -> None:
        if self._in in ("script", "style") and data.strip():
            self.inline.append(f"<{self._in}>{data}")

    def links(self) -> list[str]:
        names = ("src", "href", "action")
        return [value for _, attrs in self.tags for name, value in attrs.items() if name in names and value]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    with staged(tmp_path_factory.mktemp("pages")) as stage:
        add_run(stage, "x" * 60)
        begin(stage)
        yield stage


@pytest.mark.parametrize("path", PAGES)
def test_a_page_holds_no_code_and_asks_nobody_else(pages, path):
    answer = pages.client(accept="text/html").get(path)
    assert answer.status_code == (404 if path in ("/runs/99", "/nowhere") else 200)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = Reader(answer.text)
    assert page.inline == []
    assert all(re.match(r"[/#][^/]|/$", link) for link in page.links()), page.links()
    client = pages.client()
    for link in page.links():
        if link.startswith("/static/"):
            assert client.get(link).status_code == 200, link


def test_a_page_is_sent_again_only_if_it_changed(pages):
    client = pages.client()
    first = client.get("/runs/1")
    assert first.headers["cache-control"] == "private, no-cache"
    again = client.get("/runs/1", headers={"if-none-match": f'"x", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"]
    signed = pages.signed_in().get("/runs/1", headers={"if-none-match": first.headers["etag"]})
    assert signed.status_code == 200, "a session's page holds its own seal"
    missing = client.get("/runs/99", headers={"if-none-match": "*"})
    assert missing.status_code == 404


def test_a_hostile_name_is_text_wherever_it_stands(stage):
    add_run(stage, f'"><img src=x onerror=alert(1)>{HOSTILE}')
    begin(stage)
    for path in ("/runs/1", "/runs/1/log"):
        page = Reader(stage.client(accept="text/html").get(path).text)
        assert page.inline == []
        assert not [tag for tag, _ in page.tags if tag == "img"]
        assert any("onerror" in (value or "") for _, attrs in page.tags for value in attrs.values())


def test_the_seal_is_in_the_page_of_a_session_only(pages):
    assert '<meta name="csrf" content="">' in pages.client().get("/").text
    client = pages.signed_in()
    assert f'content="{client.headers["x-csrf-token"]}"' in client.get("/").text


def test_the_pages_work_below_a_proxys_path(pages):
    from starlette.testclient import TestClient

    client = TestClient(
        pages.app, base_url="http://127.0.0.1:8765", root_path="/gpu", headers={"accept": "text/html"}
    )
    page = Reader(client.get("/gpu/runs/1").text)
    assert page.links()
    assert all(link.startswith(("/gpu/", "#")) for link in page.links()), page.links()
    assert client.get("/gpu/api/v1/fleet").status_code == 200
    assert client.get("/gpu/nowhere").status_code == 404


# -- static files


def test_static_files_have_names_that_change_with_them_and_are_kept_for_a_year(pages, tmp_path):
    version = pages.parts.assets.version
    client = pages.client()
    kept = client.get(f"/static/{version}/app.css")
    assert kept.status_code == 200
    assert kept.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert kept.headers["content-type"] == "text/css; charset=utf-8"
    plain = client.get("/static/app.css")
    assert plain.headers["cache-control"] == "no-cache"
    assert client.get("/static/app.css", headers={"if-none-match": plain.headers["etag"]}).status_code == 304
    assert client.get("/static/0123456789ab/app.css").status_code == 404
    (tmp_path / "app.css").write_text("a{}")
    one = Assets(tmp_path).version
    (tmp_path / "app.css").write_text("b{}")
    assert Assets(tmp_path).version != one


def test_static_files_are_small_and_sent_packed(pages):
    client = pages.client()
    whole = 0
    for name in pages.parts.assets.names:
        packed = client.get(f"/static/{name}", headers={"accept-encoding": "gzip"})
        plain = client.get(f"/static/{name}", headers={"accept-encoding": "identity"})
        assert plain.content == (FOLDER / name).read_bytes()
        assert packed.content == plain.content
        assert "content-encoding" not in plain.headers
        whole += int(packed.headers["content-length"])
    assert whole < 200_000


def test_only_known_files_are_served(pages):
    for name in ("", "nothing.js", "vendor/README.md", "../app.py", "/etc/passwd", "%2e%2e/app.py", "js"):
        assert pages.client().get(f"/static/{name}").status_code == 404, name
