"""The application: the guard, the pages, the API, the metrics; every error is an answer without a trace."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response

from orchestrator import __version__
from orchestrator.errors import (
    ActRefused,
    BlindError,
    ConfigError,
    GuestRefused,
    NotFound,
    OrchestratorError,
    RunAlive,
)
from orchestrator.serve import api, metrics, models
from orchestrator.serve.guard import Guard, RefusedError, Visitor
from orchestrator.serve.pages import Pages, router
from orchestrator.serve.texts import text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from starlette.types import ASGIApp

    from orchestrator.serve.parts import Parts

logger = logging.getLogger(__name__)

SWEEP_S = 30.0
_STATUSES: tuple[tuple[type[OrchestratorError], int], ...] = (
    (NotFound, 404),
    (BlindError, 503),
    (GuestRefused, 409),
    (RunAlive, 409),
    (ActRefused, 409),
    (ConfigError, 409),
    (OrchestratorError, 500),
)


def create_app(parts: Parts) -> ASGIApp:
    """Return the whole service, guarded."""
    pages = Pages(parts)
    app = FastAPI(
        title="dflashctl",
        version=__version__,
        description=(models.__doc__ or "").partition("\n")[2].strip(),
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan(parts),
        redirect_slashes=False,
    )
    _errors(app, pages)
    _checks(app, parts)
    app.include_router(api.router(parts))
    app.include_router(router(parts, pages))
    return Guard(app, parts.rules, parts.clock, pages.refusal)


def _lifespan(parts: Parts) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async def sweep() -> None:
            while True:
                await asyncio.sleep(SWEEP_S)
                await asyncio.to_thread(parts.logs.sweep)

        tasks = [asyncio.create_task(parts.hub.run()), asyncio.create_task(sweep())]
        try:
            yield
        finally:
            parts.hub.close()
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    return lifespan


def _checks(app: FastAPI, parts: Parts) -> None:
    @app.get("/healthz", include_in_schema=False)
    async def healthz(request: Request) -> Response:
        found = parts.health()
        visitor: Visitor = request.scope["visitor"]
        lines = ["ok" if found.is_well else "not well"]
        if visitor.is_known or parts.rules.reads_freely:
            lines += [text(why) for why in found.why]
        return PlainTextResponse("\n".join(lines) + "\n", 200 if found.is_well else 503)

    exposition = metrics.Exposition(parts)

    @app.get("/metrics", include_in_schema=False)
    def numbers(request: Request) -> Response:
        data, media_type = exposition.answer(request.headers.get("accept", ""))
        return Response(data, headers={"content-type": media_type})


def _errors(app: FastAPI, pages: Pages) -> None:
    def told(request: Request, status: int, code: str, message: str, hint: str | None) -> Response:
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        message = text(message)
        if "text/html" in request.headers.get("accept", "") and not path.startswith("/api/"):
            return pages.problem(request, status, message, hint)
        error = {"code": code, "message": message, "hint": text(hint) if hint else None}
        return JSONResponse({"error": error}, status)

    @app.exception_handler(OrchestratorError)
    def ours(request: Request, error: OrchestratorError) -> Response:
        status = next(status for kind, status in _STATUSES if isinstance(error, kind))
        return told(request, status, error.code, error.message, error.hint)

    @app.exception_handler(RefusedError)
    async def refused(request: Request, error: RefusedError) -> Response:
        answer = pages.refusal(request.scope, error)
        assert isinstance(answer, Response)
        return answer

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        parts = [
            f"{each['loc'][-1]}: {each['msg']}, not {str(each['input'])[:100]!r}" for each in error.errors()
        ]
        return told(request, 422, "bad_request", "; ".join(parts[:5]), "see /api/v1/openapi.json")

    @app.exception_handler(HTTPException)
    def of_http(request: Request, error: HTTPException) -> Response:
        answer = told(request, error.status_code, "http_error", str(error.detail), None)
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    def a_bug(request: Request, error: Exception) -> Response:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return told(request, 500, "internal_error", "the service has a fault; its log says which", None)
