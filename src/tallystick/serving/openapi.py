"""Describe the HTTP interface: an OpenAPI document built from this party's columns, and a page for people."""

from typing import Any

import polars as pl

from tallystick import __version__
from tallystick.serving.loaded_runs import MOST_LOADED
from tallystick.serving.requests import ARROW, JSON
from tallystick.serving.served_runs import RunsNow

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>tallystick</title>
<h1>tallystick serve</h1><p>Scores: <code>POST /v1/score</code>. <a href="/openapi.json">OpenAPI</a>,
<a href="/healthz">health</a>, <a href="/readyz">readiness</a>, <a href="/metrics">metrics</a>,
<a href="/v1/runs">runs</a>.</p></html>
"""


def openapi(now: RunsNow) -> dict[str, Any]:
    """Build the document."""
    reader, scores = now.current.reader, now.current.scorer.names
    columns = {name: _type_of(reader.schema.get(name)) for name in reader.columns}
    # A client whose numbers end at 2^53 sends a large id as text
    columns |= {name: _ID for name in reader.key_columns if reader.schema.get(name, pl.String()).is_numeric()}
    row = {"type": "object", "properties": columns, "required": reader.key_columns, "additionalProperties": False}
    body = {
        "type": "object",
        "properties": {"rows": {"type": "array", "items": row, "maxItems": reader.most_rows}, "run_id": _RUN},
        "required": ["rows"],
    }
    by: dict[str, Any] = {"scored_by": {"enum": ["joint model", "own columns"]}}
    if now.current.scored_on is not None:
        by["scored_on"] = {"type": ["string", "null"], "format": "date"}
    problem = {"type": "object", "properties": {"status": {"type": "integer"}, "title": _TEXT, "detail": _TEXT}}
    scored = {"type": "object", "properties": {**{name: {"type": "number"} for name in scores}, **by, "problem": problem}}
    answer = {"type": "object", "properties": {"run_id": _TEXT, "scores": {"type": "array", "items": scored}}}
    problems = {
        str(status): {"description": text, "content": {"application/problem+json": {"schema": problem}}}
        for status, text in _STATUSES.items()
    }
    score = {
        "summary": "Score rows by their keys. Own columns are sent with the keys, or looked up.",
        "parameters": [
            {"name": "x-deadline-ms", "in": "header", "schema": {"type": "integer", "minimum": 1, "maximum": 60_000}},
            {"name": "x-run-id", "in": "header", "schema": _RUN},
        ],
        "requestBody": {"required": True, "content": {JSON: {"schema": body}, ARROW: {}}},
        "responses": {
            "200": {
                "description": "a score or a problem for each row, in their order",
                "content": {JSON: {"schema": answer}, ARROW: {}},
            }
        }
        | problems,
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "tallystick serve", "version": __version__},
        "paths": {"/v1/score": {"post": score}, "/v1/runs": {"get": _RUNS}},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


_TEXT = {"type": "string"}
_ID = {"type": ["string", "number"]}
_RUN = {
    "type": "string",
    "pattern": "^[0-9a-f]{16}$",
    "description": "the run that scores: the one in use, which is the default, or the one before it, while all sides have both",
}
_SERVED = {
    "type": "object",
    "properties": {"run_id": _TEXT, "state": {"enum": ["in use", "before", "candidate"]}, "answers": {"type": "boolean"}},
}
_WAITING = {"type": "object", "properties": {"run_id": _TEXT, "missing": {"type": "array", "items": _TEXT}}}
_RUNS = {
    "summary": f"The runs that are loaded, at most {MOST_LOADED}, and promoted ones that wait for a party.",
    "responses": {
        "200": {
            "description": "runs",
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {
                            "runs": {"type": "array", "items": _SERVED, "maxItems": MOST_LOADED},
                            "waiting": {"type": "array", "items": _WAITING},
                        },
                    }
                }
            },
        }
    },
}
_STATUSES = {
    400: "not readable",
    401: "no token",
    404: "no such key, a partner has no row, or no such run is served",
    409: "a run that is not in use: it waits for a party, or is a candidate",
    408: "the body came too slowly",
    413: "too large",
    415: "another type of body",
    422: "unknown or missing columns, or cells of another type",
    429: "too often",
    503: "no joint score came in time, or too much waits",
}


def _type_of(kind: pl.DataType | None) -> dict[str, Any]:
    if kind is not None and (kind.is_numeric() or kind == pl.Boolean):
        return {"type": ["number", "boolean", "null"]}
    if isinstance(kind, pl.List | pl.Array):
        return {"type": ["array", "null"]}
    if isinstance(kind, pl.Date):
        return {"type": ["string", "null"], "format": "date"}
    if isinstance(kind, pl.Datetime):
        return {"type": ["string", "null"], "format": "date-time"}
    return {"type": ["string", "null"]}
