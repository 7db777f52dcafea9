"""A small HTTP proxy in a separate process: ``python connect_proxy.py MODE [user:password]``.

It prints the port that it listens on, then for each connection the request line, and whether the relayed bytes begin like TLS.
"""

import asyncio
import base64
import sys


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


ANSWERS = {
    "forbidden": b"HTTP/1.1 403 Forbidden by \x1b[31mpolicy\r\nContent-Length: 0\r\n\r\n",
    "bad-gateway": b"HTTP/1.1 502 Bad Gateway\r\n\r\n",
    "rubbish": b"220 mail.example.org \x1b[2J ESMTP\r\n",
    "endless": b"HTTP/1.1 200 OK\r\n" + b"X-Filler: 1\r\n" * 5_000,
    "hasty": b"HTTP/1.1 200 OK\r\n\r\nwelcome",
    "hang-up": b"",
}


async def serve(mode, wanted):
    async def relay(reader, writer):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def take(reader, writer):
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *headers = request.split("\r\n")
        say(line)
        if mode == "hang":
            await asyncio.sleep(3600)
        if mode in ANSWERS:
            writer.write(ANSWERS[mode])
            writer.close()
            return
        if wanted is not None and f"Proxy-Authorization: Basic {base64.b64encode(wanted.encode()).decode()}" not in headers:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=x\r\n\r\n")
            writer.close()
            return
        host, _, port = line.split()[1].rpartition(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except OSError:
            writer.write(ANSWERS["bad-gateway"])
            writer.close()
            return
        if mode == "interim":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.1)
            writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
        writer.write(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n")
        first = await reader.read(65_536)
        say("TLS" if first[:2] == b"\x16\x03" else f"plain {first[:20]!r}")
        far_writer.write(first)
        await asyncio.gather(relay(reader, far_writer), relay(far_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    say(server.sockets[0].getsockname()[1])
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
