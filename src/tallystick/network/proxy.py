"""Reach a peer through an HTTP proxy: CONNECT asks it for a tunnel, in which TLS goes from end to end.

The proxy sees the peer's address and what an eavesdropper sees, nothing more.
"""

import base64
import re
from dataclasses import dataclass, field

from tallystick.errors import ConfigError
from tallystick.network.link import LinkBroken

# No I/O here: only the request, and the meaning of the answer.
MAX_ANSWER_BYTES = 16_384
END = b"\r\n\r\n"
_SHOWN_CHARACTERS = 80
# RFC 9110, section 15.2: a proxy may send these before its answer. 101 is an answer, to a request that nobody made.
_INTERIM = re.compile(rb"HTTP/1\.\d (?!101)1\d\d(?=[ \r]).*?\r\n\r\n", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Proxy:
    """The proxy's address, and ``user:password`` for it if required. The latter never appears in a repr."""

    address: str
    credentials: str | None = field(default=None, repr=False)


class ProxyRefused(LinkBroken):
    """Raised if the proxy refuses this party permanently."""


def checked_proxy(address: str, *, credentials: str | None) -> Proxy:
    """Return a proxy whose credentials are ``user:password``, if any. Raises ConfigError for anything else."""
    if credentials is not None and (":" not in credentials or not credentials.isprintable()):
        raise ConfigError("proxy.credentials: must hold one line, user:password")
    return Proxy(address=address, credentials=credentials)


def connect_request(proxy: Proxy, address: str) -> bytes:
    """Return the request for a tunnel to ``host:port``. Raises LinkBroken for an invalid host name."""
    host, _, port = address.rpartition(":")
    try:
        target = f"{host.encode('idna').decode()}:{port}" if not host.startswith("[") else address
    except UnicodeError:
        raise LinkBroken(f"{host} is not a host name") from None
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.credentials is not None:
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(proxy.credentials.encode()).decode()}")
    return "\r\n".join([*lines, "", ""]).encode()


def is_whole(answer: bytes | bytearray) -> bool:
    """Tell whether an answer is complete, or can never be an answer: then do not wait for more."""
    if len(answer) >= MAX_ANSWER_BYTES:
        return True
    answer = _final(answer)
    return END in answer or not (answer.startswith(b"HTTP/1.") or len(answer) < 7)


def check_answer(answer: bytes | bytearray, proxy: Proxy) -> None:
    """Return if the tunnel is open. Raises ProxyRefused for a refusal, LinkBroken for anything else."""
    where, answer = f"the proxy at {proxy.address}", _final(answer)
    status = bytes(answer).partition(b"\r\n")[0]
    version, _, reason_bytes = status.partition(b" ")
    code, reason = reason_bytes[:3], _printable(reason_bytes[4:])
    if not version.startswith(b"HTTP/1.") or not code.isdigit() or len(code) != 3 or END not in answer:
        if not answer:
            raise LinkBroken(f"{where} hung up when it was asked for a connection")
        raise LinkBroken(f"{where} does not answer like an HTTP proxy: {_printable(bytes(answer))!r}")
    if code.startswith(b"2"):
        if answer.index(END) + len(END) < len(answer):
            raise LinkBroken(f"{where} sent more than its answer before anything was sent through it")
        return
    answered = f"{where} answers {code.decode()} {reason}".rstrip()
    if code == b"407":
        if proxy.credentials is None:
            raise ProxyRefused(f"{answered}: it asks for a user and a password; say in proxy.credentials where user:password is")
        raise ProxyRefused(f"{answered}: it refuses the user and password in proxy.credentials")
    if code in (b"401", b"403", b"405"):
        raise ProxyRefused(f"{answered}: it does not let this party connect there; ask the people who run it")
    raise LinkBroken(f"{answered}: it did not reach the peer")


def _final(answer: bytes | bytearray) -> bytes | bytearray:
    """Return the answer without the interim answers (100, 102, 103) before it."""
    while interim := _INTERIM.match(answer):
        answer = answer[interim.end() :]
    return answer


def _printable(answer: bytes) -> str:
    """Return text from a stranger in a form that can be shown: short, and without control characters."""
    text = answer[:_SHOWN_CHARACTERS].decode("ascii", errors="replace")
    return "".join(each if each.isprintable() else "?" for each in text)
