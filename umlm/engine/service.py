"""How one request is served, beside how its tokens are chosen."""

from __future__ import annotations

from dataclasses import dataclass

from umlm.options import check, option


@dataclass(frozen=True)
class Service:
    """Priority, time limits and privacy of a request, the same for the library and the server.

    A request that ends by a time limit has finish_reason "timeout", and what it generated until then.
    """

    priority: int = option(0, "greater goes first, and loses its pages last")
    queue_timeout: float | None = option(None, "end if it has not begun after so long", gt=0, unit="seconds")
    timeout: float | None = option(None, "end after so long, waiting included", gt=0, unit="seconds")
    cache_salt: str | None = option(None, "share known prefixes only with requests of this salt")

    def __post_init__(self) -> None:
        check(self)
