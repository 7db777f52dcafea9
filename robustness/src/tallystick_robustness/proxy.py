"""Run a TCP proxy that misbehaves once by a plan: ``python -m tallystick_robustness.proxy PLAN``, where PLAN is JSON.

It writes a JSON line to standard output when the fault strikes.
"""

import asyncio
import json
import socket
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any

import msgspec

CHUNK = 1 << 14
DRIP = 1_500  # bytes a second: a whole TLS record takes longer than the deadline


@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """Plan a proxy: where to listen and forward to, which fault comes after how many bytes, and how long it lasts."""

    port: int
    target: int
    kind: str = "none"
    at_bytes: int = 0
    seconds: float = 0.0
    direction: str = "up"  # from the caller to the listener, or down


class Relay:
    """Hold one caller's connection and the one to the listener."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.near, self.far = near, far
        self.silent = False

    def end(self, *, reset: bool = False) -> None:
        """Close both connections."""
        for writer in (self.near, self.far):
            if reset:
                raw = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            else:
                writer.close()


class FaultProxy:
    """Forward traffic, count it, and strike once."""

    def __init__(self, plan: FaultPlan) -> None:
        self._plan = plan
        self._server: asyncio.Server  # from the start of serve on
        self._lines: list[Relay] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers: list[asyncio.StreamWriter] = []
        self._passed = 0
        self._struck = False
        self._mute = False  # towards everybody, also new callers
        self._slow_until = 0.0
        self._held: list[bytes] = []
        self._taped: list[bytes] = []

    async def serve(self) -> None:
        """Serve until killed."""
        await self._open()
        await asyncio.Event().wait()

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", self._plan.port, limit=CHUNK)

    async def _take(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        if self._mute:
            self._strangers.append(near)
            return
        try:
            beyond, far = await asyncio.open_connection("127.0.0.1", self._plan.target, limit=CHUNK)
        except OSError:
            near.close()
            return
        line = Relay(near, far)
        self._lines.append(line)
        await asyncio.gather(self._pump(line, reader, far, "up"), self._pump(line, beyond, near, "down"))

    async def _pump(self, line: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str) -> None:
        try:
            while data := await reader.read(CHUNK):
                self._passed += len(data)
                if direction == "up":
                    self._taped.append(data)
                if not self._struck and self._passed >= self._plan.at_bytes and direction == self._plan.direction:
                    data = await self._strike(line, data)
                if line.silent or self._mute:
                    continue
                await self._forward(writer, data)
            if not (line.silent or self._mute):
                writer.close()  # TLS is over for both sides once one half is closed
        except OSError:
            line.end()

    async def _forward(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        last = time.monotonic()
        while data and (now := time.monotonic()) < self._slow_until:
            passes, last = int((now - last) * DRIP) + 1, now
            writer.write(data[:passes])
            await writer.drain()
            data = data[passes:]
            await asyncio.sleep(0.01)
        writer.write(data)
        await writer.drain()

    async def _strike(self, line: Relay, data: bytes) -> bytes:
        """Let the fault happen instead of ``data``, and return the part of it that must still be forwarded."""
        self._struck = True
        plan = self._plan
        sys.stdout.write(json.dumps({"struck": time.monotonic(), "passed": self._passed}) + "\n")
        sys.stdout.flush()
        match plan.kind:
            case "delay" | "a short silence":
                await asyncio.sleep(plan.seconds)
            case "cut":
                line.end()
            case "reset":
                line.end(reset=True)
            case "half-close":
                (line.far if plan.direction == "up" else line.near).write_eof()
                line.silent = False
                return b""
            case "a corrupt byte":
                place = len(data) // 2
                return data[:place] + bytes((data[place] ^ 0x40,)) + data[place + 1 :]
            case "slow drip":
                self._slow_until = time.monotonic() + plan.seconds
            case "the connection goes silent":
                line.silent = True
                return b""
            case "everything goes silent":
                self._mute = True
                return b""
            case "rebind" | "gone":
                await self._rebind(plan.seconds if plan.kind == "rebind" else None)
            case "late bytes of an old connection":
                line.near.close()
                self._later(self._deliver(line, data, plan.seconds))
                line.silent = True
            case "replay of the caller's bytes":
                self._later(self._replay())
            case "strangers":
                await self._call_in(int(plan.seconds))
            case _:
                pass
        return data

    async def _rebind(self, seconds: float | None) -> None:
        self._server.close()
        for line in self._lines:
            line.end(reset=True)
        self._lines.clear()
        if seconds is None:
            return
        await asyncio.sleep(seconds)
        await self._open()

    async def _deliver(self, line: Relay, data: bytes, seconds: float) -> None:
        """Give the listener the last bytes of the old connection, after the caller has dialled again."""
        await asyncio.sleep(seconds)
        try:
            line.far.write(data)
            await line.far.drain()
        finally:
            line.far.close()

    async def _replay(self) -> None:
        """Repeat all words of the caller on a new connection, and hang up."""
        taped = list(self._taped)
        _, far = await asyncio.open_connection("127.0.0.1", self._plan.target)
        far.write(b"".join(taped))
        await asyncio.sleep(0.5)
        far.close()

    async def _call_in(self, count: int) -> None:
        """Hold plain connections open at the listener, as anybody could."""
        for _ in range(count):
            try:
                _, far = await asyncio.open_connection("127.0.0.1", self._plan.target)
            except OSError:
                return
            self._strangers.append(far)

    def _later(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def main(text: str) -> None:
    """Run the proxy that the plan describes."""
    asyncio.run(FaultProxy(msgspec.json.decode(text, type=FaultPlan)).serve())


if __name__ == "__main__":
    main(sys.argv[1])
