"""The JSON API: /api/v1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request
from starlette.responses import Response, StreamingResponse

from orchestrator import __version__
from orchestrator.errors import ActRefused
from orchestrator.fleet.past import card_of_row
from orchestrator.serve import curves, models, stream
from orchestrator.serve.cards import run_body
from orchestrator.serve.detail import history_body, read
from orchestrator.serve.guard import RefusedError
from orchestrator.serve.logs import DEFAULT_BYTES, MAX_BYTES
from orchestrator.serve.plan import plan_body
from orchestrator.serve.texts import encoded, moment, text

if TYPE_CHECKING:
    from orchestrator.serve.guard import Visitor
    from orchestrator.serve.parts import Parts

RunId = Annotated[int, Path(description="The run's id, as the fleet tells it.", ge=1, lt=1 << 53)]
JSON = "application/json"
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    401: {"model": models.Refusal, "description": "The token is needed, or was wrong."},
    404: {"model": models.Refusal, "description": "There is no such thing."},
    421: {"model": models.Refusal, "description": "The Host header is no name of this server."},
}
_ACTS = {
    **_PROBLEMS,
    403: {"model": models.Refusal, "description": "It came from another site, or without X-CSRF-Token."},
    409: {"model": models.Refusal, "description": "Something asked before is under way, or it only looks."},
}
_LOG = {
    **_PROBLEMS,
    200: {
        "content": {"application/octet-stream": {}},
        "description": "The bytes, secrets starred out. X-Log-Size: of the whole log; X-Log-Start: where the "
        "first byte is in it; X-Log-Attempt; X-Log-Source: container or mirror.",
    },
    503: {
        "model": models.Refusal,
        "description": "The container cannot be reached; says nothing of the run.",
    },
}
_STREAM = {
    **_PROBLEMS,
    200: {
        "content": {"text/event-stream": {}},
        "description": "`fleet` (Fleet) first, then `runs` (Changes), `told` (Told), and in silence `ping`.",
    },
}


def router(parts: Parts) -> APIRouter:
    """Return the API's routes."""
    routes = APIRouter(prefix="/api/v1")
    _fleet(routes, parts)
    _run(routes, parts)
    _acts(routes, parts)
    return routes


def _fleet(routes: APIRouter, parts: Parts) -> None:
    hub = parts.hub

    @routes.get("/fleet", response_model=models.Fleet, responses=_PROBLEMS, summary="All runs")
    async def fleet() -> Response:
        hub.refresh()
        return Response(hub.whole(), media_type=JSON)

    @routes.get("/stream", response_class=StreamingResponse, responses=_STREAM, summary="What changes")
    async def follow(last_event_id: Annotated[str | None, Header(max_length=100)] = None) -> Response:
        if hub.num_readers >= stream.MAX_READERS:
            raise RefusedError(503, "too_many_readers", f"{hub.num_readers} follow already", wait_s=10.0)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(stream.events(hub, last_event_id), 200, headers, "text/event-stream")

    @routes.get("/session", responses=_PROBLEMS, summary="Who asks")
    async def session(request: Request) -> models.Session:
        visitor: Visitor = request.scope["visitor"]
        seal = parts.rules.token.csrf(visitor.session) if visitor.session is not None else None
        return models.Session(
            is_signed_in=visitor.is_known, csrf=seal, acting=parts.acting, version=__version__
        )


def _run(routes: APIRouter, parts: Parts) -> None:
    record, clock = parts.record, parts.clock

    @routes.get("/runs/{run_id}", response_model=models.RunDetail, responses=_PROBLEMS, summary="One run")
    def run(run_id: RunId) -> Response:
        row, card = parts.row(run_id), parts.card(run_id)
        known = read(record, row)
        body = {
            **run_body(card if card is not None else card_of_row(row)),
            "schema_version": models.SCHEMA_VERSION,
            "at": moment(clock.now()),
            **history_body(known),
            "playbook": plan_body(parts.fleet, record, clock, row, card),
            "logs": [
                {"attempt": each.n, "num_bytes": parts.log_size(row, each.n)} for each in known.attempts
            ],
        }
        return Response(encoded(body), media_type=JSON)

    @routes.get(
        "/runs/{run_id}/curves", response_model=models.Curves, responses=_PROBLEMS, summary="Its curves"
    )
    def run_curves(run_id: RunId) -> Response:
        row = parts.row(run_id)
        body = curves.curves_body(record.attempts(row.id), record.metrics(row.id))
        return Response(encoded(body), media_type=JSON)

    @routes.get(
        "/runs/{run_id}/gpus", response_model=models.GpuHistory, responses=_PROBLEMS, summary="Its GPUs"
    )
    def run_gpus(run_id: RunId) -> Response:
        row = parts.row(run_id)
        body = curves.gpus_body(record.gpus(row.id), parts.card(run_id))
        return Response(encoded(body), media_type=JSON)

    @routes.get(
        "/runs/{run_id}/lines", response_model=models.Lines, responses=_PROBLEMS, summary="Its log's tail"
    )
    def lines(
        run_id: RunId, after: Annotated[int, Query(ge=0, description="The last line that is known.")] = 0
    ) -> Response:
        row = parts.row(run_id)
        found = parts.fleet.board.lines(row.target_key, row.name, after)
        told = [{"seq": each.seq, "attempt": each.attempt, "text": text(each.text)} for each in found]
        last = found[-1].seq if found else after
        return Response(encoded({"last": last, "lines": told}), media_type=JSON)

    @routes.get("/runs/{run_id}/log", response_class=Response, responses=_LOG, summary="Its log by range")
    def log(
        run_id: RunId,
        attempt: Annotated[int | None, Query(ge=1, description="Default the newest.")] = None,
        start: Annotated[
            int, Query(ge=-(1 << 53), le=1 << 53, description="The first byte; negative: from the end.")
        ] = -DEFAULT_BYTES,
        length: Annotated[int, Query(ge=0, le=MAX_BYTES, description="How many bytes.")] = DEFAULT_BYTES,
    ) -> Response:
        row, card = parts.row(run_id), parts.card(run_id)
        newest = card.attempt if card is not None else None
        piece = parts.logs.read(row, attempt, start, length, newest)
        headers = {
            "x-log-size": str(piece.size),
            "x-log-start": str(piece.start),
            "x-log-attempt": str(piece.attempt),
            "x-log-source": piece.source,
        }
        return Response(piece.data, headers=headers, media_type="application/octet-stream")


def _acts(routes: APIRouter, parts: Parts) -> None:
    def asked_by(request: Request) -> str:
        visitor: Visitor = request.scope["visitor"]
        how = "the dashboard" if visitor.session is not None else "the API"
        return f"by {how} from {visitor.address or 'here'}"

    def check(what: str) -> None:
        if not parts.acting:
            raise ActRefused(f"{what}: this service only looks", hint="start it without --observe-only")

    @routes.post("/runs/{run_id}/stop", status_code=202, responses=_ACTS, summary="Stop it for good")
    def stop(request: Request, run_id: RunId) -> models.Accepted:
        row = parts.row(run_id)
        check("stop")
        parts.asking.stop(row, asked_by=asked_by(request))
        return models.Accepted(accepted=True, text="stopping, as asked")

    @routes.post(
        "/runs/{run_id}/relaunch", status_code=202, responses=_ACTS, summary="Start its next attempt"
    )
    def relaunch(request: Request, run_id: RunId) -> models.Accepted:
        row = parts.row(run_id)
        check("relaunch")
        parts.asking.relaunch(row, asked_by=asked_by(request))
        return models.Accepted(accepted=True, text="relaunching, as asked")
