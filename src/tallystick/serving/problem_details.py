"""Tell a client why it gets no score: problem details (RFC 9457), one line that says what to do and names no value."""

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:  # of the extra `serve`, which a feature party does without
    from starlette.responses import Response

AGAIN_S = 1


@dataclass(kw_only=True)
class Problem(Exception):
    """An answer that is no score: ``detail`` is the line, ``status`` HTTP's."""

    status: int
    detail: str
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def later(cls, status: int, detail: str, *, after_s: int = AGAIN_S) -> "Problem":
        """Make a problem that may be gone in some seconds."""
        return cls(status=status, detail=detail, headers={"Retry-After": str(after_s)})

    @property
    def facts(self) -> dict[str, Any]:
        """Return the facts as the body has them."""
        return {"status": self.status, "title": HTTPStatus(self.status).phrase, "detail": self.detail}

    def response(self) -> "Response":
        """Make the response as HTTP sends it."""
        from starlette.responses import Response

        return Response(
            msgspec.json.encode(self.facts), status_code=self.status, media_type="application/problem+json", headers=self.headers
        )
