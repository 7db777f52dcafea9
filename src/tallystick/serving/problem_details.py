"""Tell a client why it gets no score: problem details (RFC 9457) with one line that says what to do and names no value."""

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:  # from the extra `serve`, which a feature party need not install
    from starlette.responses import Response

AGAIN_S = 1


@dataclass(kw_only=True)
class Problem(Exception):
    """An error answer: ``detail`` is the line, ``status`` the HTTP status."""

    status: int
    detail: str
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def later(cls, status: int, detail: str, *, after_s: int = AGAIN_S) -> "Problem":
        """Build a problem that a client may retry in some seconds."""
        return cls(status=status, detail=detail, headers={"Retry-After": str(after_s)})

    @property
    def facts(self) -> dict[str, Any]:
        """Return the fields of the body."""
        return {"status": self.status, "title": HTTPStatus(self.status).phrase, "detail": self.detail}

    def response(self) -> "Response":
        """Build the HTTP response."""
        from starlette.responses import Response

        return Response(
            msgspec.json.encode(self.facts), status_code=self.status, media_type="application/problem+json", headers=self.headers
        )
