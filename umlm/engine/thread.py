"""The one thread that evaluates MLX arrays: lazy arrays made in one thread cannot be evaluated in another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
WAIT = 0.5  # seconds a consumer waits at a stretch: interrupts and a dead thread are noticed in between


class EngineThread:
    """Runs jobs in the order they came, and `work` again and again in between while it returns True.

    Without work and jobs it sleeps. It is a daemon, so it never keeps the process alive.
    """

    def __init__(self) -> None:
        self.work: Callable[[], bool] = _no_work
        self._jobs: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="umlm-engine", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether jobs are still taken."""
        return self._thread.is_alive()

    def post(self, job: Callable[[], Any]) -> None:
        """Run a job soon, without waiting for it. Safe in any thread and in `__del__`."""
        self._jobs.put(job)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run function(*args) on the thread; returns its result or raises its exception."""
        if threading.current_thread() is self._thread:
            return function(*args)
        future: Future[T] = Future()
        self.post(lambda: _fulfil(future, function, args))
        try:
            return self._result(future)
        except KeyboardInterrupt:
            future.cancel()
            raise

    def _result(self, future: Future[T]) -> T:
        while True:
            try:
                return future.result(timeout=WAIT)
            except FutureTimeoutError:
                if future.done():  # the function itself raised a TimeoutError
                    return future.result()
                if not self.is_alive:
                    raise RuntimeError("the engine is stopped; load the model again") from None

    def stop(self) -> None:
        """Finish the jobs that are queued, then end the thread and wait for that."""
        self._jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        busy = False
        while True:
            try:
                job = self._jobs.get(block=not busy)
            except Empty:
                busy = self.work()
                continue
            if job is None:
                return
            job()
            del job  # a job may hold the last reference to an engine
            busy = True


def _no_work() -> bool:
    return False


def _fulfil(future: Future[T], function: Callable[..., T], args: tuple[Any, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function(*args))
    except BaseException as error:  # handed to the caller, whatever it is
        future.set_exception(error)
