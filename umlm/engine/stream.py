"""The two ends of a request's chunks: the engine puts, one consumer takes, in a thread or in asyncio."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from umlm.engine.output import Chunk
from umlm.engine.thread import WAIT

if TYPE_CHECKING:
    import asyncio


class Channel:
    """A queue of chunks that can wake a waiting event loop."""

    def __init__(self) -> None:
        self.chunks: SimpleQueue[Chunk] = SimpleQueue()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def put(self, chunk: Chunk) -> None:
        """Hand a chunk over; called by the engine thread."""
        self.chunks.put(chunk)
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            loop, future = waiter
            with contextlib.suppress(RuntimeError):  # the loop is closed, nobody waits any more
                loop.call_soon_threadsafe(_wake, future)

    async def arrival(self, timeout: float) -> None:
        """Wait in asyncio until a chunk may have come, or the time is over."""
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiter = (loop, future)
        if self.chunks.empty():  # asked after the waiter is in place: no chunk can slip through
            await asyncio.wait([future], timeout=timeout)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Stream(Iterator[Chunk], AsyncIterator[Chunk]):
    """The chunks of one submission: iterate, or `async for`. Ends after the last chunk of every answer.

    Leaving it early cancels: close(), an exception such as KeyboardInterrupt while waiting, or dropping it.
    """

    def __init__(self, channel: Channel, num_answers: int, cancel: Callable[[], None], alive: Callable[[], bool]):
        self._channel = channel
        self._open = num_answers
        self._cancel = cancel
        self._alive = alive

    def cancel(self) -> None:
        """End the answers that still grow; their last chunks say "abort". Does nothing at the end."""
        if self._open:
            self._cancel()

    def close(self) -> None:
        """Cancel, and end the iteration now."""
        self.cancel()
        self._open = 0

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Chunk:
        if not self._open:
            raise StopIteration
        try:
            return self._count(self._wait())
        except BaseException:
            self.close()
            raise

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Chunk:
        if not self._open:
            raise StopAsyncIteration
        try:
            return self._count(await self._arrival())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _wait(self) -> Chunk:
        while True:
            try:
                return self._channel.chunks.get(timeout=WAIT)
            except Empty:
                self._check_alive()

    async def _arrival(self) -> Chunk:
        while True:
            try:
                return self._channel.chunks.get_nowait()
            except Empty:
                self._check_alive()
                await self._channel.arrival(WAIT)

    def _check_alive(self) -> None:
        if not self._alive() and self._channel.chunks.empty():
            raise RuntimeError("the engine is stopped; load the model again")

    def _count(self, chunk: Chunk) -> Chunk:
        self._open -= chunk.finish_reason is not None
        return chunk
