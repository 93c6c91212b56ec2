"""The pages: shells from templates; all that they show comes over the API. And logging in and out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import JSONResponse, RedirectResponse, Response

from orchestrator import __version__
from orchestrator.serve.assets import etag_of, is_known
from orchestrator.serve.guard import RefusedError, Visitor, check_csrf, login
from orchestrator.serve.texts import line
from orchestrator.serve.token import SESSION_S

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Scope

    from orchestrator.serve.parts import Parts

TEMPLATES = Path(__file__).parent / "templates"
MAX_FORM_BYTES = 8192
# A link on another site comes without our strict cookie; the same page asked for by our own comes with it.
_AGAIN = '<!doctype html><title>dflashctl</title><meta http-equiv="refresh" content="0">\n'
_TITLES = {401: "Log in first", 403: "Refused", 404: "Not found", 421: "Not a name of this server"}


class Pages:
    """Renders the templates for whoever asks."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._environment = Environment(
            autoescape=True, undefined=StrictUndefined, loader=FileSystemLoader(TEMPLATES), auto_reload=False
        )

    def page(self, request: Request, name: str, *, http_status: int = 200, **values: object) -> Response:
        """Return a page, or that it did not change."""
        root = request.scope.get("root_path", "")
        visitor: Visitor = request.scope.get("visitor") or Visitor("")
        token = self._parts.rules.token
        told = {
            "root": root,
            "static": f"{root}/static/{self._parts.assets.version}",
            "csrf": token.csrf(visitor.session) if visitor.session is not None else "",
            "can_log_out": visitor.session is not None,
            "version": __version__,
        }
        data = self._environment.get_template(name).render({**told, **values}).encode()
        headers = {"etag": etag_of(data), "cache-control": "private, no-cache", "vary": "cookie"}
        if http_status == 200 and is_known(headers["etag"], request.headers):
            return Response(status_code=304, headers=headers)
        return Response(data, http_status, headers, media_type="text/html; charset=utf-8")

    def refusal(self, scope: Scope, refused: RefusedError) -> ASGIApp:
        """Return the answer to what is refused: a page to a person, JSON to a program."""
        request = Request(scope)
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        is_page = "text/html" in request.headers.get("accept", "") and not path.startswith("/api/")
        headers = {"retry-after": f"{refused.wait_s:.0f}"} if refused.wait_s else {}
        if is_page and refused.asks_login and request.method == "GET":
            if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
                return Response(_AGAIN, media_type="text/html; charset=utf-8")
            there = quote(path + (f"?{request.url.query}" if request.url.query else ""), safe="/")
            return RedirectResponse(f"{request.scope.get('root_path', '')}/login?next={there}", 303)
        if is_page:
            page = self.problem(request, refused.status, refused.message, refused.hint)
            page.headers.update(headers)
            return page
        if refused.status == 401:
            headers["www-authenticate"] = 'Bearer realm="dflashctl"'
        error = {"code": refused.code, "message": refused.message, "hint": refused.hint}
        return JSONResponse({"error": error}, refused.status, headers)

    def problem(self, request: Request, status: int, message: str, hint: str | None) -> Response:
        """Return the page of what cannot be shown."""
        title = _TITLES.get(status, "Not possible")
        return self.page(
            request,
            "error.html",
            http_status=status,
            status=status,
            title=title,
            message=message,
            hint=hint or "",
        )


def router(parts: Parts, pages: Pages) -> APIRouter:
    """Return the pages' routes."""
    routes = APIRouter(include_in_schema=False)
    _shells(routes, parts, pages)
    _logins(routes, parts, pages)
    return routes


def _shells(routes: APIRouter, parts: Parts, pages: Pages) -> None:
    @routes.get("/")
    def fleet(request: Request) -> Response:
        return pages.page(request, "fleet.html")

    def of_run(request: Request, run_id: int, name: str) -> Response:
        row = parts.row(run_id)
        return pages.page(request, name, run={"id": row.id, "name": line(row.name)})

    @routes.get("/runs/{run_id:int}")
    def run(request: Request, run_id: int) -> Response:
        return of_run(request, run_id, "run.html")

    @routes.get("/runs/{run_id:int}/log")
    def log(request: Request, run_id: int) -> Response:
        return of_run(request, run_id, "log.html")

    @routes.get("/static/{path:path}")
    def static(request: Request, path: str) -> Response:
        return parts.assets.answer(path, request.headers)

    @routes.get("/favicon.ico")
    def icon(request: Request) -> Response:
        return parts.assets.answer("icon.svg", request.headers)


def _logins(routes: APIRouter, parts: Parts, pages: Pages) -> None:
    rules = parts.rules

    @routes.get("/login")
    def ask(request: Request) -> Response:
        there = local_path(request.query_params.get("next", "/"))
        return pages.page(request, "login.html", problem="", next=there)

    @routes.post("/login")
    async def take(request: Request) -> Response:
        form = await _form(request)
        there = local_path(form.get("next", "/"))
        visitor: Visitor = request.scope["visitor"]
        try:
            login(rules, visitor.address, form.get("token", "").strip(), parts.clock.monotonic())
        except RefusedError as refused:
            return _wrong(pages, request, refused, there)
        root = request.scope.get("root_path", "")
        answer = RedirectResponse(root + there, 303)
        answer.set_cookie(
            rules.cookie,
            rules.token.session(parts.clock.now().timestamp()),
            max_age=int(SESSION_S),
            path=root or "/",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    @routes.post("/logout")
    async def leave(request: Request) -> Response:
        visitor: Visitor = request.scope["visitor"]
        check_csrf(rules.token, visitor, (await _form(request)).get("csrf", ""))
        root = request.scope.get("root_path", "")
        answer = RedirectResponse(f"{root}/login", 303)
        answer.delete_cookie(rules.cookie, path=root or "/", httponly=True, samesite="strict")
        return answer


def _wrong(pages: Pages, request: Request, refused: RefusedError, there: str) -> Response:
    hint = f"; {refused.hint}" if refused.hint else ""
    problem = f"{refused.message[:1].upper()}{refused.message[1:]}{hint}."
    page = pages.page(request, "login.html", http_status=refused.status, problem=problem, next=there)
    if refused.wait_s:
        page.headers["retry-after"] = f"{refused.wait_s:.0f}"
    return page


async def _form(request: Request) -> dict[str, str]:
    """Return a small form's fields; the last of each name.

    Raises:
        RefusedError: It is too long.
    """
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_FORM_BYTES:
            raise RefusedError(413, "too_long", f"the form is over {MAX_FORM_BYTES} bytes")
    found = parse_qs(data.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=20)
    return {name: values[-1] for name, values in found.items()}


def local_path(there: str) -> str:
    """Return a path of this server; `/` for anything that could lead elsewhere."""
    is_path = there.startswith("/") and not there.startswith("//") and "\\" not in there
    return there if is_path and there.isprintable() and len(there) < 1_000 else "/"
