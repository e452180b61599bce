"""How one request wants its tokens chosen, and where it wants to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from umlm.options import check, option

GREEDY_BELOW = 1e-5  # logits divided by less than this leave the float range


@dataclass(frozen=True)
class SamplingParams:
    """Sampling and stopping, the same for the library, the command line and the server.

    The order is fixed: logit_bias, penalties, temperature, top_k, top_p, min_p, then one draw. Each filter sees
    the renormalized distribution that the one before it left; the likeliest token always stays.
    temperature 0, the default, takes the likeliest token and draws nothing.
    """

    temperature: float = option(0.0, "randomness; 0 always takes the likeliest token", ge=0, le=100)
    top_k: int = option(0, "draw from the k likeliest tokens only; 0 or -1 takes all", ge=-1)
    top_p: float = option(1.0, "draw from the fewest tokens that hold this share of probability", ge=0, le=1)
    min_p: float = option(0.0, "drop tokens below this share of the likeliest one's probability", ge=0, le=1)
    repetition_penalty: float = option(
        1.0, "divide the positive and multiply the negative logits of tokens seen in prompt and answer", gt=0, le=100
    )
    presence_penalty: float = option(0.0, "subtract from the logits of tokens generated so far", ge=-2, le=2)
    frequency_penalty: float = option(0.0, "subtract per time that a token was generated so far", ge=-2, le=2)
    logit_bias: Mapping[int | str, float] | None = option(
        None, "add to the logits of token ids; 100 forces a token, -100 forbids it", ge=-100, le=100
    )
    seed: int | None = option(None, "repeat the same draws; none draws afresh", ge=-(2**63), le=2**64 - 1)
    stop: str | Sequence[str] | None = option(None, "end before this text; several may be given")
    stop_token_ids: Sequence[int] | None = option(None, "end at this token id; several may be given", ge=0)
    ignore_eos: bool = option(False, "do not end at the model's end-of-text tokens")
    min_tokens: int = option(0, "do not end before so many tokens", ge=0)
    max_tokens: int | None = option(256, "end after so many tokens; none goes on to the context's limit", ge=0)
    logprobs: int | None = option(
        None, "report the log-probability of each token and of so many likeliest ones", ge=0, le=1000
    )
    prompt_logprobs: int | None = option(
        None,
        "report the same for each token of the prompt after the first; with max_tokens 0 nothing else",
        ge=0,
        le=1000,
    )
    n: int = option(1, "independent answers to the prompt", ge=1, le=128)

    def __post_init__(self) -> None:
        check(self)
        if "" in self.stops:
            raise ValueError("stop must not contain the empty string '': it would end every answer at once")
        if self.max_tokens == 0 and self.prompt_logprobs is None:
            raise ValueError("max_tokens must be at least 1, not 0; 0 is for prompt_logprobs alone")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens must be at most max_tokens ({self.max_tokens}), not {self.min_tokens}")
        _ = self.bias

    @cached_property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, however they were given."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @cached_property
    def bias(self) -> dict[int, float]:
        """logit_bias by token id; JSON gives its keys as strings."""
        return {_token_id(key): float(value) for key, value in (self.logit_bias or {}).items()}

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken without a draw."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1 or self.top_p == 0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ValueError when a token id of logit_bias or stop_token_ids is not below vocab_size."""
        named = [("logit_bias", token) for token in self.bias]
        named += [("stop_token_ids", token) for token in self.stop_token_ids or ()]
        for name, token in named:
            if not token < vocab_size:
                raise ValueError(f"{name} must hold token ids below {vocab_size}, the vocabulary size, not {token}")


def _token_id(key: int | str) -> int:
    if isinstance(key, str) and not (key.isascii() and key.isdigit()):
        raise ValueError(f"logit_bias must have token ids as keys, not {key!r}")
    if int(key) < 0:
        raise ValueError(f"logit_bias must have token ids of at least 0 as keys, not {key}")
    return int(key)
