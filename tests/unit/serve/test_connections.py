"""Connections that ask nothing: none of them costs the process a descriptor for long."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import pytest
import uvicorn

from orchestrator.serve.connections import Connection
from orchestrator.serve.listening import Place, listen

ASK = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


class Few(Connection):
    max_connections = 3


class Short(Connection):
    ask_s = 0.2


@dataclass
class There:
    host: str
    port: int
    writers: list[asyncio.StreamWriter] = field(default_factory=list)


async def answer(scope, receive, send):
    """Answers at once; below /long it never ends."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"o", "more_body": True})
    if scope["path"] == "/long":
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    await send({"type": "http.response.body", "body": b"k"})


class Quiet(uvicorn.Server):
    @contextmanager
    def capture_signals(self):
        yield  # signals stay the test runner's


@asynccontextmanager
async def served(protocol):
    listener, place = listen(Place("127.0.0.1", 0))
    server = Quiet(
        uvicorn.Config(answer, http=protocol, lifespan="off", log_config=None, timeout_keep_alive=1)
    )
    task = asyncio.ensure_future(server.serve([listener]))
    there = There(place.host, place.port)
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield server, there
    finally:
        for writer in there.writers:
            writer.close()
        server.force_exit = server.should_exit = True
        await task


async def is_closed(reader) -> bool:
    try:
        return bool(await asyncio.wait_for(reader.read(1), 5) == b"")
    except ConnectionResetError:
        return True


async def opened(place, words=b""):
    reader, writer = await asyncio.open_connection(place.host, place.port)
    place.writers.append(writer)
    writer.write(words)
    await asyncio.sleep(0.05)
    return reader


def test_of_too_many_those_that_ask_nothing_are_closed_and_who_is_answered_stays():
    async def work():
        async with served(Few) as (server, place):
            long = await opened(place, ASK.replace(b"/ ", b"/long "))
            assert (await long.readuntil(b"\r\n\r\no")).endswith(b"o")
            idle = [await opened(place) for _ in range(8)]
            assert len(server.server_state.connections) == 3
            assert [await is_closed(reader) for reader in idle[:6]] == [True] * 6
            reader = await opened(place, ASK)
            assert (await asyncio.wait_for(reader.readuntil(b"ok"), 5)).startswith(b"HTTP/1.1 200")
            assert not long.at_eof()

    asyncio.run(work())


def test_a_newcomer_is_closed_where_all_are_being_answered():
    async def work():
        async with served(Few) as (_, place):
            long = [await opened(place, ASK.replace(b"/ ", b"/long ")) for _ in range(3)]
            reader = await opened(place)
            assert await is_closed(reader)
            assert not any(each.at_eof() for each in long)

    asyncio.run(work())


@pytest.mark.parametrize(
    "words",
    [b"", b"GET / HT", ASK + b"GET", b"POST /long HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nxx"],
)
def test_a_request_that_does_not_come_to_its_end_is_not_waited_for(words):
    async def work():
        async with served(Short) as (_, place):
            reader = await opened(place, words)
            await asyncio.wait_for(reader.read(), 5)

    asyncio.run(work())


def test_who_asked_whole_is_answered_for_as_long_as_it_takes():
    async def work():
        async with served(Short) as (_, place):
            reader = await opened(place, ASK.replace(b"/ ", b"/long "))
            await reader.readuntil(b"\r\n\r\no")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.6)

    asyncio.run(work())
