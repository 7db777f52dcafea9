"""Relay connections on loopback with the rate and the delay of a line between two companies, for any number of listeners."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

CHUNK = 1 << 14
START_S = 10.0
QUEUED_S = 0.01
"""Seconds of bytes that wait before the line: more than a sleep can be late, so that this never leaves the line idle."""


@dataclass(kw_only=True)
class SlowLink:
    """Simulate a line of ``mbit_per_s`` each way for every connection, on which an answer takes at least ``round_trip_ms``.

    The round trip may change while the line runs.
    """

    mbit_per_s: float
    round_trip_ms: float
    _servers: list[asyncio.Server] = field(default_factory=list, repr=False)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop, repr=False)

    def to(self, port: int) -> int:
        """Return a port whose connections reach this listener at the far end of the line."""
        return asyncio.run_coroutine_threadsafe(self._listen(port), self._loop).result(START_S)

    @contextlib.contextmanager
    def running(self) -> Iterator["SlowLink"]:
        """Relay in a separate thread until the block ends."""
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(START_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    async def _listen(self, port: int) -> int:
        async def take(near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
            try:
                far_reader, far = await asyncio.open_connection("127.0.0.1", port)
            except OSError:  # nobody listens yet, and the caller will call again
                near.close()
                return
            try:
                await asyncio.gather(self._carry(near_reader, far), self._carry(far_reader, near))
            except asyncio.CancelledError:  # the line ends; asyncio would log that its callback was cancelled
                return
            finally:
                for writer in (near, far):
                    writer.close()

        server = await asyncio.start_server(take, "127.0.0.1", 0)
        self._servers.append(server)
        own: int = server.sockets[0].getsockname()[1]
        return own

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read bytes no faster than the line's rate, and hand each chunk over half a round trip later."""
        loop = asyncio.get_running_loop()
        on_the_line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivering = asyncio.create_task(_deliver(on_the_line, writer))
        free = loop.time()
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                free = max(free, loop.time()) + len(data) * 8 / (self.mbit_per_s * 1e6)
                on_the_line.put_nowait((free + self.round_trip_ms / 2000, data))
                await asyncio.sleep(free - loop.time() - QUEUED_S)
        on_the_line.put_nowait((loop.time() + self.round_trip_ms / 2000, b""))
        await delivering

    async def _end(self) -> None:
        """Close the listeners, and cancel everything that still relays."""
        for server in self._servers:
            server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _deliver(on_the_line: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter) -> None:
    """Hand over bytes that have reached the end of the line. An empty chunk means the end."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while True:
            due, data = await on_the_line.get()
            await asyncio.sleep(due - loop.time())
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
