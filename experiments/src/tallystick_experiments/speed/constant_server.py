"""Run the server that serves scores with a constant answer instead of a score: ``python constant_server.py PORT``."""

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

ANSWER = b'{"run_id":"0000000000000000","scores":[{"score":0.5,"scored_by":"joint model"}]}'


async def score(request: Request) -> Response:
    """Read the body and return the constant answer."""
    await request.body()
    return Response(ANSWER, media_type="application/json")


if __name__ == "__main__":
    app = Starlette(routes=[Route("/v1/score", score, methods=["POST"])])
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_config=None, access_log=False, lifespan="off")
