"""Limit who may send requests, and how often."""

import hmac
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tallystick.errors import ConfigError
from tallystick.network.certificates import open_to_others
from tallystick.serving.problem_details import Problem

LEAST_TOKEN = 16
LOOK_S = 5.0


class Tokens:
    """Bearer tokens from a file, one per line. The file is read again when it changes. ``say`` is called if something is wrong
    with it.

    Raises ConfigError for a file that cannot be read, or holds no token or a short one.
    """

    def __init__(self, path: Path, *, say: Callable[[str], None]) -> None:
        self._path, self._say = path, say
        self._tokens = _read(path)
        if warning := open_to_others(path, named="serving.token_file", what="these tokens"):
            say(f"warning: {warning}")
        self._looked = time.monotonic()
        self._changed = path.stat().st_mtime_ns

    def check(self, header: str | None) -> None:
        """Raise a Problem unless the header bears one of the tokens."""
        if time.monotonic() - self._looked >= LOOK_S:
            self._looked = time.monotonic()
            try:
                changed = self._path.stat().st_mtime_ns
            except OSError:
                changed = 0
            if changed != self._changed:
                self._changed = changed
                try:
                    self._tokens = _read(self._path)
                except ConfigError as error:  # the file may be half written
                    self._say(f"{error}; the former tokens stay")
        scheme, _, token = (header or "").partition(" ")
        token_bytes = token.strip().encode()
        matches = [hmac.compare_digest(token_bytes, each) for each in self._tokens]
        if scheme.lower() != "bearer" or not any(matches):
            detail = "a bearer token of serving.token_file is missing; send it in the header Authorization"
            raise Problem(status=401, detail=detail, headers={"WWW-Authenticate": "Bearer"})


def _read(path: Path) -> Sequence[bytes]:
    try:
        tokens = [line.strip() for line in path.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise ConfigError(f"serving.token_file = {path}: cannot be read: {error.strerror}; check the path") from None
    if not tokens or min(map(len, tokens)) < LEAST_TOKEN:
        raise ConfigError(
            f"serving.token_file = {path}: must hold tokens of at least {LEAST_TOKEN} characters, one a line; "
            "`openssl rand -hex 32` makes one"
        )
    return tokens


class Rate:
    """A limit of this many requests per second on average, and as many at once."""

    def __init__(self, per_second: int | None) -> None:
        self._rate = per_second
        self._left = float(per_second or 0)
        self._at = time.monotonic()

    def check(self) -> None:
        """Count a request. Raises a Problem beyond the limit."""
        if self._rate is None:
            return
        now = time.monotonic()
        self._left = min(float(self._rate), self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            after_s = max(1, math.ceil((1 - self._left) / self._rate))
            detail = "more requests than serving.requests_per_second; try again after Retry-After"
            raise Problem.later(429, detail, after_s=after_s)
        self._left -= 1
