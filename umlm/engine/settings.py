"""How one engine shares the machine among its requests."""

from __future__ import annotations

from dataclasses import dataclass

from umlm.cache.budget import KV_BITS, KVBits, KVMemory, parse_kv_memory
from umlm.options import check, option


@dataclass(frozen=True)
class EngineSettings:
    """Limits of the scheduler and the page pool."""

    context: int | None = option(
        None, "most tokens of prompt and answer; none takes what the model was made for", ge=2, unit="tokens"
    )
    max_requests: int = option(32, "most requests that run together", ge=1)
    token_budget: int = option(512, "most tokens computed in one step", ge=1, unit="tokens")
    max_chunk: int | None = option(None, "most tokens of one prompt in one step", ge=1, unit="tokens")
    page_size: int = option(16, "tokens in one page of keys and values", choices=(16, 32))
    num_pages: int | None = option(None, "pages of keys and values; none takes what kv_memory gives", ge=1)
    kv_bits: str | None = option(
        None,
        "bits of keys and values in pages; none keeps the dtype's floats; the default is 16 on a CPU with dtype auto",
        choices=tuple(KV_BITS),
    )
    activations: str | None = option(
        None,
        "precision of activations in products with quantized matrices, where kernels multiply integers; exact keeps "
        "all bits; the default is int16 with dtype auto, else exact",
        choices=("exact", "int16", "int8"),
    )
    prefix_cache: bool = option(True, "keep what was computed of prompts and answers, for those that begin alike")
    admission: str = option(
        "optimistic",
        "begin requests while pages last and take them from the newest when they run out, or only with pages "
        "for their greatest length",
        choices=("optimistic", "guaranteed"),
    )
    kv_memory: str | float = option(
        "auto",
        "memory for keys and values: auto, a size such as 8GiB, or a share such as 0.8 of what weights, activations "
        "and reserve leave",
        unit="size",
    )

    def __post_init__(self) -> None:
        check(self)
        parse_kv_memory(self.kv_memory)
        if self.token_budget < self.max_requests:
            raise ValueError(
                f"token_budget must be at least max_requests ({self.max_requests}), not {self.token_budget}"
            )

    @property
    def bits(self) -> KVBits:
        """What kv_bits says."""
        return KV_BITS[self.kv_bits or "none"]

    @property
    def memory(self) -> KVMemory:
        """What kv_memory says."""
        return parse_kv_memory(self.kv_memory)
