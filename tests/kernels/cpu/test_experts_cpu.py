"""The CPU kernels' products with routed experts, on every instruction set."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from float64 import FLOATS, assert_near, draw, wide
from test_experts import COLUMNS, EXPERTS, every_format, expected, stack
from test_quantized_matmul import AFFINE

from umlm import kernels
from umlm.kernels import Format, Packed


@every_format
def test_equals_float64(form: Format, isa: str) -> None:
    rng, (packed, matrices) = np.random.default_rng(1), stack(form)
    for dtype in FLOATS:
        for tokens, width, k in ((1, 1, 2), (30, 1, 2), (9, 3, 3)):
            x, ids = draw(rng, tokens, width, COLUMNS, dtype=dtype), rng.integers(0, EXPERTS, (tokens, k))
            assert_near(kernels.expert_matmul(x, packed, mx.array(ids)), expected(wide(x), ids, matrices), dtype)


@every_format
def test_a_token_gets_what_its_expert_alone_gives(form: Format, isa: str) -> None:
    """Bit for bit, whichever tokens share its experts."""
    rng, (packed, _) = np.random.default_rng(2), stack(form)
    x, ids = draw(rng, 20, 1, COLUMNS), rng.integers(0, EXPERTS, (20, 2))
    found = np.array(kernels.expert_matmul(x, packed, mx.array(ids)))
    for token, slot in np.ndindex(*ids.shape):
        arrays = (packed.weight, packed.scales, packed.biases)
        weight, scales, biases = (None if a is None else a[int(ids[token, slot])] for a in arrays)
        assert weight is not None
        alone = kernels.quantized_matmul(x[token], Packed(form, packed.shape[1:], weight, scales, biases))
        np.testing.assert_array_equal(found[token, slot], np.array(alone)[0])


def test_an_unknown_expert_is_refused() -> None:
    packed, _ = stack(AFFINE[7])
    for wrong in (-1, EXPERTS):
        with pytest.raises(RuntimeError, match=f"no expert {wrong} of {EXPERTS}"):
            mx.eval(kernels.expert_matmul(mx.zeros((1, 1, COLUMNS)), packed, mx.array([[0, wrong]])))


def test_misuse_is_refused() -> None:
    packed, _ = stack(AFFINE[7])
    with pytest.raises(ValueError, match="a row of 256 values for each expert id"):
        kernels.expert_matmul(mx.zeros((2, 3, COLUMNS)), packed, mx.zeros((2, 2), dtype=mx.int32))
    with pytest.raises(ValueError, match="a row of 256 values for each expert id"):
        kernels.expert_matmul(mx.zeros((2, 1, 64)), packed, mx.zeros((2, 2), dtype=mx.int32))
