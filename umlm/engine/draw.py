"""How a request draws: its filters, and a number that depends on its seed, index and place alone.

So a request gets the same tokens whoever its batch mates are, and after a preemption too.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from umlm import kernels
from umlm.engine.request import Request
from umlm.kernels.sampling import Chosen, Draw


def choose(logits: mx.array, requests: Sequence[Request]) -> Chosen:
    """One token per row of adjusted logits [S, V], the likeliest or a draw; lazy."""
    return kernels.sample_rows(logits, [_draw(request) for request in requests])


def uniform(request: Request) -> float:
    """A number in [0, 1) for the request's next token; 23 bits, so that it stays below 1 when scaled in float32."""
    source = np.random.SeedSequence(request.seed, spawn_key=(request.index, request.num_generated))
    return float(source.generate_state(1)[0] >> 9) / 2**23


def _draw(request: Request) -> Draw | None:
    params = request.params
    if params.is_greedy:
        return None
    return Draw(params.temperature, max(params.top_k, 0), params.top_p, params.min_p, uniform(request))
