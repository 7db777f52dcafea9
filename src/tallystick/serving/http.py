"""HTTP at the label party: scores for its clients, each with an answer within its deadline."""

import asyncio
import io
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
import polars as pl
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tallystick.config.serving import ServingOptions
from tallystick.errors import StorageError, StoreError
from tallystick.job.prediction_output import SCORED_BY, SCORED_ON
from tallystick.run_folder.answer_journal import AnsweredRow, kept_columns
from tallystick.scoring.batching import MOST_ROWS, Batcher, Outcome, PendingRows, Times, Why
from tallystick.serving.connections import ACCEPTED_AT_ONCE, PatientServer, bounded_protocol
from tallystick.serving.metrics import Metrics
from tallystick.serving.openapi import PAGE, openapi
from tallystick.serving.problem_details import Problem
from tallystick.serving.rate_limits import Rate, Tokens
from tallystick.serving.requests import ARROW, JSON, RequestedRows, ScoreRequest, decoded
from tallystick.serving.served_runs import ServedRun, ServedRuns
from tallystick.serving.shadow import Shadow
from tallystick.tables.features import Features

JOINT, ALONE = "joint model", "own columns"
BODY_S = 5.0
KEEP_ALIVE_S = 75
"""As long as load balancers keep a connection. If one is closed just as its next request comes, the client loses that request."""
SCORE = "/v1/score"
DEADLINE, RUN = "x-deadline-ms", "x-run-id"
MARGIN = 0.15
"""The share of a request's deadline that is kept for a score by own columns."""

_PROBLEMS: dict[Why, Problem] = {
    "unknown": Problem(status=404, detail="no row here has this key; bring its own columns, or check the key"),
    "absent": Problem(
        status=404,
        detail="a partner has no row with this key, or on shares `tallystick predict` opened no score of it, and no row is "
        "scored here by own columns alone",
    ),
    "budget": Problem.later(
        429, "this row was asked for as often as the contract allows in a day; try again tomorrow", after_s=3600
    ),
    "store": Problem.later(503, "rows cannot be looked up here at the moment; the log of this server has the reason"),
    "away": Problem.later(
        503,
        "no joint score came in time (a partner, or this server, is late or away), and no row is scored here by own columns "
        "alone; try again",
    ),
}


@dataclass(kw_only=True)
class _Rows:
    """The rows of one request while they are scored."""

    why_B: list[Why]
    scores: dict[str, list[float]]
    scored_by: list[str | None]
    scored_on: list[str | None] | None
    times: Times | None

    def as_json(self, run_id: str) -> Response:
        """Answer with an object for each row."""
        days = self.scored_on or []
        scored = [
            {
                **{name: values[place] for name, values in self.scores.items()},
                SCORED_BY: by,
                **({SCORED_ON: days[place]} if days else {}),
            }
            if by is not None
            else {"problem": _PROBLEMS[self.why_B[place]].facts}
            for place, by in enumerate(self.scored_by)
        ]
        return Response(msgspec.json.encode({"run_id": run_id, "scores": scored}), media_type=JSON)

    def as_arrow(self, run_id: str) -> Response:
        """Answer with an Arrow IPC stream."""
        details = [None if by else _PROBLEMS[why].detail for by, why in zip(self.scored_by, self.why_B, strict=True)]
        columns = [pl.Series(name, values, dtype=pl.Float32).fill_nan(None) for name, values in self.scores.items()]
        columns += [pl.Series(SCORED_BY, self.scored_by, dtype=pl.String), pl.Series("problem", details, dtype=pl.String)]
        if self.scored_on is not None:
            columns.insert(-1, pl.Series(SCORED_ON, self.scored_on, dtype=pl.String).str.to_date())
        stream = io.BytesIO()
        pl.DataFrame(columns).write_ipc_stream(stream)
        return Response(stream.getvalue(), media_type=ARROW, headers={RUN: run_id})


class ScoreServer:
    """POST /v1/score and the other routes. ``shadow`` gets the answered rows, so that a candidate can score them, too."""

    def __init__(
        self,
        options: ServingOptions,
        batcher: Batcher,
        runs: ServedRuns,
        metrics: Metrics,
        *,
        say: Callable[[str], None],
        shadow: Shadow | None = None,
    ) -> None:
        self._say, self._said, self._shadow = say, "", shadow
        self._options, self._batcher, self._runs, self._metrics = options, batcher, runs, metrics
        self._tokens = Tokens(options.token_file, say=say) if options.token_file is not None else None
        self._rate = Rate(options.requests_per_second)

    async def score(self, request: Request) -> Response:
        """Score the rows of a request."""
        began = time.monotonic()
        try:
            self._allow(request)
            self._rate.check()
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind not in (JSON, ARROW):
                raise Problem(status=415, detail=f"content-type: must be {JSON} or {ARROW}")
            deadline_ms = self._options.deadline_ms
            if (header := request.headers.get(DEADLINE)) is not None:
                if not header.isdecimal() or len(header) > 5 or not 1 <= int(header) <= 60_000:
                    raise Problem(status=400, detail=f"{DEADLINE}: must be a whole number of milliseconds from 1 to 60000")
                deadline_ms = float(header)
            until = began + deadline_ms / 1000
            body = await _body(request, most=self._options.max_body_kib << 10)
            payload = decoded(body) if kind == JSON else body
            run_id = payload.run_id if isinstance(payload, ScoreRequest) else None
            with self._runs.using(run_id if run_id is not None else request.headers.get(RUN)) as run:
                requested = run.reader.json(payload) if isinstance(payload, ScoreRequest) else run.reader.arrow(payload)
                if self._batcher.full:
                    raise Problem.later(503, "more rows are waiting than serving.max_waiting; try again after Retry-After")
                rows = await self._rows(run, requested, until - MARGIN * (until - began), until)
                for by in rows.scored_by:
                    self._metrics.rows.labels(by or "none", run.run_id).inc()
                await self._keep(run, requested, rows, began, until)
                candidate = self._runs.now.candidate
                if self._shadow is not None and candidate is not None and run is self._runs.now.current:
                    places = [place for place, by in enumerate(rows.scored_by) if by == JOINT]
                    scores = {name: [values[place] for place in places] for name, values in rows.scores.items()}
                    columns = requested.columns[places] if requested.columns is not None else None
                    self._shadow.offer(candidate, [requested.keys[place] for place in places], columns, scores)
                if not any(rows.scored_by):
                    raise _PROBLEMS[rows.why_B[0]]
                response = rows.as_json(run.run_id) if kind == JSON else rows.as_arrow(run.run_id)
        except Problem as problem:
            response = problem.response()
        self._metrics.requests.labels(str(response.status_code)).inc()
        self._metrics.seconds.observe(time.monotonic() - began)
        return response

    async def _rows(self, run: ServedRun, requested: RequestedRows, joint_until: float, until: float) -> _Rows:
        """Return the joint scores that arrive before the deadline.

        Score the other rows by own columns, if the contract allows it.
        """
        parts = await self._outcomes(run, requested, joint_until)
        why_B = [why for part in parts for why in part.why_B]
        scores: dict[str, list[float]] = {name: [] for name in run.scorer.names}
        for part in parts:
            for name, values in scores.items():
                column = part.scores.get(name)
                values += column.tolist() if column is not None else [float("nan")] * len(part.why_B)
        scored_by: list[str | None] = [JOINT if why == "joint" else None for why in why_B]
        own_places = [place for place, why in enumerate(why_B) if why not in ("joint", "unknown")]
        if own_places and (score_alone := run.scorer.alone) is not None:
            own, places = await _own(run, requested, own_places, until)
            if own is not None:
                for name, own_scores in score_alone(own).items():
                    for place, value in zip(places, own_scores.tolist(), strict=True):
                        scores[name][place], scored_by[place] = value, ALONE
        times = max((part.times for part in parts if part.times is not None), key=lambda each: each.ended, default=None)
        days = run.scored_on(requested.keys) if run.scored_on is not None else None
        scored_on = [day if by == JOINT else None for day, by in zip(days, scored_by, strict=True)] if days is not None else None
        return _Rows(why_B=why_B, scores=scores, scored_by=scored_by, scored_on=scored_on, times=times)

    async def _outcomes(self, run: ServedRun, requested: RequestedRows, until: float) -> list[Outcome]:
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Outcome]] = []
        sizes: list[int] = []
        for start in range(0, len(requested.keys), MOST_ROWS):
            keys = requested.keys[start : start + MOST_ROWS]
            own = (
                requested.own
                if requested.own is None or len(requested.keys) <= MOST_ROWS
                else _picked(requested.own, range(start, start + len(keys)))
            )
            future: asyncio.Future[Outcome] = loop.create_future()
            self._batcher.want(PendingRows(run=run, keys=keys, own=own, until=until, done=_told(loop, future)))
            futures.append(future)
            sizes.append(len(keys))
        timer = loop.call_later(max(until - time.monotonic(), 0), _time_out, futures, sizes)
        try:
            return [await future for future in futures]
        finally:
            timer.cancel()

    async def _keep(self, run: ServedRun, requested: RequestedRows, rows: _Rows, began: float, until: float) -> None:
        """Save the answers. If the disk is full, clients still get their answers, and the failure is counted."""
        if (answers := run.answers) is None or not answers.takes():
            return
        columns: dict[int, tuple[tuple[float, ...], tuple[int, ...]]] = {}
        if answers.samples():
            own, places = await _own(run, requested, list(range(len(requested.keys))), until)
            columns = {place: kept_columns(own, at) for at, place in enumerate(places)} if own is not None else {}
        answered_rows = []
        for place, (key, why, by) in enumerate(zip(requested.keys, rows.why_B, rows.scored_by, strict=True)):
            scores = [rows.scores[name][place] for name in run.scorer.names] if by is not None else []
            numbers, codes = columns.get(place, (None, None))
            row = answers.digest(key)
            answered_rows.append(AnsweredRow(row=row, why=why, by=by, scores=tuple(scores), numbers=numbers, codes=codes))
        try:
            parts = {"all": time.monotonic() - began}
            if rows.times is not None:
                scoring = rows.times.ended - rows.times.began - rows.times.asked_s
                parts |= {"waiting": max(rows.times.began - began, 0.0), "partners": rows.times.asked_s, "scoring": scoring}
            answers.keep(answered_rows, {name: 1000 * seconds for name, seconds in parts.items()})
        except StorageError as error:
            self._metrics.lost.inc()
            if str(error) != self._said:
                self._said = str(error)
                self._say(f"{error}; clients get their answers, but these are not saved")

    def _allow(self, request: Request) -> None:
        if self._tokens is not None:
            self._tokens.check(request.headers.get("authorization"))

    # Other routes

    async def healthy(self, request: Request) -> Response:  # noqa: ARG002
        """Answer that the process is alive."""
        return Response("ok\n", media_type="text/plain")

    async def ready(self, request: Request) -> Response:  # noqa: ARG002
        """Answer whether the partners answer. If the contract allows scores by own columns alone, the server is ready without
        them.
        """
        if self._batcher.ready or self._runs.now.current.scorer.alone is not None:
            return Response("ready\n" if self._batcher.ready else "ready, by own columns alone\n", media_type="text/plain")
        return Problem.later(503, "the partners are not connected; scores follow when they are").response()

    async def metrics(self, request: Request) -> Response:
        """Write Prometheus' page."""
        try:
            self._allow(request)
        except Problem as problem:
            return problem.response()
        self._metrics.ready.set(self._batcher.ready)
        self._metrics.show(self._runs.now)
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def document(self, request: Request) -> Response:  # noqa: ARG002
        """Answer the OpenAPI document."""
        return Response(msgspec.json.encode(openapi(self._runs.now)), media_type=JSON)

    async def runs(self, request: Request) -> Response:
        """Answer which runs are served, and which wait for which party."""
        try:
            self._allow(request)
        except Problem as problem:
            return problem.response()
        return Response(msgspec.json.encode(self._runs.now.facts()), media_type=JSON)

    async def page(self, request: Request) -> Response:  # noqa: ARG002
        """Answer a page for people."""
        return Response(PAGE, media_type="text/html")


def application(scores: ScoreServer) -> ASGIApp:
    """Build the ASGI application.

    Requests for scores go straight to their method, because routing would take a tenth of their time.
    """
    routes: list[tuple[str, Callable[[Request], Awaitable[Response]], str]] = [
        (SCORE, scores.score, "POST"),
        ("/v1/runs", scores.runs, "GET"),
        ("/healthz", scores.healthy, "GET"),
        ("/readyz", scores.ready, "GET"),
        ("/metrics", scores.metrics, "GET"),
        ("/openapi.json", scores.document, "GET"),
        ("/", scores.page, "GET"),
    ]
    app = Starlette(
        routes=[Route(path, endpoint, methods=[method]) for path, endpoint, method in routes],
        exception_handlers={404: _no_such_page, 405: _no_such_page, 500: _failed},
    )
    app.router.redirect_slashes = False  # a redirect would send clients to any Host that a request, or a proxy, named

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != SCORE or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await scores.score(request)
        except Exception as error:  # whatever it is, the client gets an answer, and the server goes on
            response = await _failed(request, error)
        await response(scope, receive, send)

    return answer


def run_server(app: ASGIApp, options: ServingOptions) -> uvicorn.Server:
    """Build a server for the application. It has no log, because requests are private."""
    assert options.listen is not None
    host, _, port = options.listen.rpartition(":")
    tls = None
    if options.tls is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.minimum_version = ssl.TLSVersion.TLSv1_3  # 1.2 has CBC ciphers, and current clients do not need it
        tls.load_cert_chain(options.tls.certificate, options.tls.key)
        if options.tls.client_ca is not None:
            tls.load_verify_locations(options.tls.client_ca)
            tls.verify_mode = ssl.CERT_REQUIRED
    return PatientServer(
        uvicorn.Config(
            app,
            host=host.strip("[]"),
            port=int(port),
            log_config=None,
            log_level=logging.ERROR,  # no warnings: strangers send many malformed requests
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",  # an upgraded connection would escape all limits
            timeout_graceful_shutdown=5,
            timeout_keep_alive=KEEP_ALIVE_S,
            loop="asyncio" if tls is not None else "auto",
            backlog=ACCEPTED_AT_ONCE,
            http=bounded_protocol(tls=tls),
        )
    )


async def _own(run: ServedRun, requested: RequestedRows, places: list[int], until: float) -> tuple[Features | None, list[int]]:
    """Return own columns of the rows whose columns arrive before the deadline, and which rows these are."""
    if requested.own is not None:
        return _picked(requested.own, places), places
    keys = [requested.keys[place] for place in places]
    try:
        if run.store.blocks:
            rows_found = await asyncio.wait_for(asyncio.to_thread(run.store.find, keys), max(until - time.monotonic(), 0))
        else:
            rows_found = run.store.find(keys)
    except (StoreError, TimeoutError):
        return None, []
    known_places = [place for place, is_found in zip(places, rows_found.is_found_B, strict=True) if is_found]
    return (rows_found.features_E, known_places) if known_places else (None, [])


async def _no_such_page(request: Request, error: Exception) -> Response:  # noqa: ARG001
    status = getattr(error, "status_code", 404)
    return Problem(status=status, detail="scores are at POST /v1/score; /openapi.json says more").response()


async def _failed(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return Problem(
        status=500, detail=f"this failed unexpectedly ({type(error).__name__}); tell the operator of this server"
    ).response()


async def _body(request: Request, *, most: int) -> bytes:
    # The rest of the body is not read.
    closes = {"Connection": "close"}
    detail = f"the body is over {most >> 10} KiB (serving.max_body_kib); ask in several requests"
    too_large = Problem(status=413, detail=detail, headers=closes)
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and (len(length) > 18 or int(length) > most):
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > most:
                    raise too_large
    except TimeoutError:
        detail = f"the body did not arrive within {BODY_S:g} s; send it at once"
        raise Problem(status=408, detail=detail, headers=closes) from None
    except ClientDisconnect:
        raise Problem(status=400, detail="the body was cut short") from None
    return b"".join(parts)


def _told(loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Outcome]") -> Callable[[Outcome], None]:
    def tell(outcome: Outcome) -> None:
        try:
            loop.call_soon_threadsafe(_settle, future, outcome)
        except RuntimeError:
            return  # the server has stopped, and nobody waits

    return tell


def _settle(future: "asyncio.Future[Outcome]", outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)


def _time_out(futures: "list[asyncio.Future[Outcome]]", sizes: list[int]) -> None:
    for future, rows in zip(futures, sizes, strict=True):
        _settle(future, Outcome.without(rows, "away"))


def _picked(features: Features, places: "range | list[int]") -> Features:
    import torch

    return features.rows(torch.tensor(list(places), dtype=torch.int64))
