"""Pass connections on to a port of this network namespace: `python forward.py DESCRIPTOR PORT`.

The descriptor is a listening socket of another namespace, inherited from the process that made it. A server
that listens on all addresses runs in a namespace of its own, and is reached at that socket alone. Ends with
its parent.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import socket
import sys
from contextlib import closing, suppress

_PR_SET_PDEATHSIG = 1


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with closing(writer), suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


async def main(descriptor: int, port: int) -> None:
    """Serve until the parent ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError):
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))

    await (await asyncio.start_server(serve, sock=socket.socket(fileno=descriptor))).serve_forever()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    asyncio.run(main(*map(int, sys.argv[1:])))
