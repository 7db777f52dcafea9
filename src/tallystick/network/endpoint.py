"""Hold this party's sessions with all its peers, over TLS, with pinned names.

The label party (and a helper) listens, the others dial. session.py keeps a session alive while links come and go. Only one thread
may use the sessions of an Endpoint.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable

from tallystick.errors import ConfigError, PeerError, PeerLost, printable
from tallystick.network.certificates import Identity
from tallystick.network.link import Link, LinkBroken
from tallystick.network.loop import Loop
from tallystick.network.proxy import Proxy, ProxyRefused
from tallystick.network.session import (
    PROCESS_BYTES,
    REFUSAL,
    Hello,
    Limits,
    Refusal,
    Session,
    first_frame,
    open_hello,
)
from tallystick.network.tls import TlsTransport, WrongCertificate

REDIAL_S = 0.5
# Greatest number of callers with a certificate that have not said who they are: for each party, and for all callers that are not
# parties. The next caller replaces the oldest of its kind.
GUESTS = 4
GUEST_S = 2.0
# Greatest number of lines about refused callers: more do not help the user of the listener.
NOTICES = 20


class Endpoint:
    """This party's end of all its sessions: one event loop, one listener if it has an address to listen on."""

    def __init__(self, identity: Identity, *, limits: Limits, listen: str | None = None, proxy: Proxy | None = None) -> None:
        self.identity = identity
        self.limits = limits
        self.port: int | None = None
        self._process = secrets.token_bytes(PROCESS_BYTES)
        self._loop = Loop()
        self._sessions: dict[str, Session] = {}
        self._dialled: set[str] = set()
        self._guests: dict[str | None, deque[Link]] = {}
        self._turned_away: dict[str, None] = {}  # problems of refused callers, each reported once
        self._notice: Callable[[str], None] | None = None
        self._noted: set[str] = set()
        try:
            self._transport = TlsTransport(identity, limits, self._loop, proxy)
        except ConfigError:
            self._loop.end(asyncio.sleep(0))
            raise
        if listen is not None:
            try:
                self.port = self._loop.run(self._transport.listen(listen, self._welcome, self._turn_away))
            except OSError as error:
                self._loop.end(self._transport.stop())
                raise ConfigError(f"listen = {listen}: cannot listen there ({error}); is the port taken?") from None
        self._loop.begin()

    def connect(
        self,
        peers: dict[str, str | None],
        *,
        waiting: Callable[[list[str]], None] | None = None,
        notice: Callable[[str], None] | None = None,
    ) -> dict[str, Session]:
        """Establish a session with every peer: dial those with an address, wait for the call of the others.

        ``waiting`` is called about once a second with the names of missing peers. ``notice`` is called at once with the problem
        of a refused caller, which may be one of them, and later with who answers in a peer's place. Raises PeerLost after
        ``wait_s``, IdentityError for a certificate that can never be accepted.
        """
        self._notice = notice
        with self._loop:
            for peer, address in peers.items():
                session = self._sessions[peer] = Session(
                    self._loop,
                    own=self.identity.name,
                    process=self._process,
                    peer=peer,
                    limits=self.limits,
                    raise_elsewhere=self._raise_failures,
                    note=self._note,
                )
                if address is not None:
                    self._dialled.add(peer)
                    self._loop.start(self._dial(session, address))
            self._loop.start(self._tick())
            last_said, noticed = time.monotonic(), 0
            while missing := [peer for peer in peers if not self._sessions[peer].connected]:
                self._loop.raise_pending()
                for peer in missing:
                    failure = self._sessions[peer].failure
                    if self._turned_away and isinstance(failure, PeerLost):
                        raise PeerLost(peer, f"{failure}; {list(self._turned_away)[-1]}")
                self._raise_failures()
                if notice is not None:
                    for line in list(self._turned_away)[noticed:]:
                        notice(line)
                    noticed = len(self._turned_away)
                if waiting is not None and time.monotonic() - last_said > 1.0:
                    last_said = time.monotonic()
                    waiting(missing)
                self._loop.spin(until=time.monotonic() + 1.0)
        return dict(self._sessions)

    def close(self, reason: str | Callable[[str], str] | None = None, *, final: bool = False) -> None:
        """End every session: normally, so that both sides have every message, or with the ``reason`` for an error.

        If peers are told different reasons, ``reason`` returns each peer's reason by its name.

        An end is ``final`` if something must be corrected first, so that resuming cannot help.
        """
        if self._loop.closed:
            return
        self._loop.ignore_interrupts()
        with self._loop:
            until = time.monotonic() + (2.0 if reason is not None else self.limits.deadline_s)
            reasons = {peer: reason(peer) if callable(reason) else reason for peer in self._sessions}
            for peer, session in self._sessions.items():
                session.take_leave(reasons[peer], final=final)
            for peer, session in self._sessions.items():
                session.see_off(until, reason=reasons[peer])
            for session in self._sessions.values():
                session.drop(session.link, "closed")
        self._loop.end(self._transport.stop())

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the thread that waits for a peer here, now or at its next wait. Any thread may call it."""
        self._loop.interrupt()

    def _raise_failures(self) -> None:
        """Raise the failure of any session: a job needs all of its parties."""
        for session in self._sessions.values():
            session.check()

    def _turn_away(self, why: str) -> None:
        if len(self._turned_away) < NOTICES:
            self._turned_away[printable(why)] = None  # it may contain text of a certificate or a Hello
            self._loop.wake()

    def _note(self, line: str, *, again: bool = False) -> None:
        """Report a line, while the job goes on: once, or each time with ``again``, for waits that are so long that
        they are few.
        """
        if not again:
            if line in self._noted or len(self._noted) >= NOTICES:
                return
            self._noted.add(line)
        if self._notice is not None:
            self._notice(printable(line))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(min(self.limits.heartbeat_s, self.limits.deadline_s) / 4)
            for session in self._sessions.values():
                session.tick(time.monotonic())

    # Dialling

    async def _dial(self, session: Session, address: str) -> None:
        """Keep a link to the peer's address until the session fails or closes."""

        async def meet(link: Link) -> None:
            await link.write(session.hello_frame())
            try:
                hello = open_hello(await asyncio.wait_for(link.read(), self.limits.deadline_s), session.peer)
            except TimeoutError:
                raise LinkBroken(f"{address} accepted the connection but sent nothing") from None
            if session.refuse(hello) is None:
                await session.run_link(link, hello)

        while session.failure is None and not session.over and not self._loop.closed:
            began = time.monotonic()
            try:
                await self._transport.dial(address, session.peer, meet)
            except LinkBroken as error:
                session.trouble = str(error)
                if isinstance(error, ProxyRefused) and not session.connected:
                    session.fail(PeerLost(session.peer, str(error)))
            except WrongCertificate as error:
                if session.connected:
                    # The peer was there before. A stranger who answers now in its place is told nothing.
                    session.trouble = f"who answers there is not {session.peer}: {error}"
                    self._note(session.trouble)
                else:
                    session.fail(error)
            except PeerError as error:
                session.fail(error)
            await asyncio.sleep(began + REDIAL_S - time.monotonic())

    # Listening

    async def _welcome(self, link: Link, names: list[str]) -> None:
        """Let a caller whose certificate is for these names into its session, or say why not."""
        party = next((name for name in names if name in self._sessions and name not in self._dialled), None)
        guests = self._guests.setdefault(party, deque())
        guests.append(link)
        if len(guests) > GUESTS:
            guests.popleft().close()
        try:
            async with asyncio.timeout(self.limits.deadline_s if party is not None else min(GUEST_S, self.limits.deadline_s)):
                admitted = await self._admit(link, names)
        finally:
            if link in guests:
                guests.remove(link)
        if admitted is not None:
            session, hello = admitted
            await session.run_link(link, hello)

    async def _admit(self, link: Link, names: list[str]) -> tuple[Session, Hello] | None:
        """Exchange Hellos with a caller, and return its session, or None for a caller that is refused."""
        try:
            hello = open_hello(await link.read(), ", ".join(names) or "a caller")
        except PeerError as error:
            self._turn_away(str(error))
            await link.write(first_frame(REFUSAL, Refusal(matter="protocol", reason=str(error))))
            return None
        if hello.party not in names:
            certified = ", ".join(names) or "nobody"
            self._turn_away(f"a caller who says to be {hello.party!r} holds a certificate for {certified}")
            refusal: Refusal | None = Refusal(
                matter="identity", reason=f"your certificate is for {certified}, not for {hello.party!r}"
            )
        else:
            session = self._sessions.get(hello.party)
            if session is None or hello.party in self._dialled:
                refusal = Refusal(matter="early", reason=f"{self.identity.name} does not expect {hello.party!r} (yet)")
            else:
                refusal = session.refuse(hello)
        if refusal is not None:
            await link.write(first_frame(REFUSAL, refusal))
            return None
        session = self._sessions[hello.party]
        former = session.link
        session.drop(former, "replaced by a new link")  # before this side says how much it received
        if former is not None:
            former.close()
        await link.write(session.hello_frame())
        return session, hello
