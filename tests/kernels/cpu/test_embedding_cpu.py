"""Rows of quantized tables on every instruction set."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from float64 import FLOATS, assert_near
from test_quantized_cpu import every_format, pack, truth, unit

from umlm import kernels
from umlm.kernels import Format


@every_format
def test_rows_equal_float64(form: Format, isa: str) -> None:
    packed = pack(form, 37, 3 * unit(form))
    ids = np.random.default_rng(1).integers(0, 37, (2, 50))
    for dtype in FLOATS:
        assert_near(kernels.embedding(mx.array(ids), packed, dtype), truth(packed)[ids], dtype)


@pytest.mark.parametrize("dtype", [mx.uint32, mx.int64, mx.uint8])
def test_ids_of_any_integer_type(dtype: mx.Dtype) -> None:
    packed = pack(Format("affine", 4, 64), 9, 64)
    found = kernels.embedding(mx.array([[8, 0]], dtype=dtype), packed, mx.float32)
    assert_near(found, truth(packed)[[[8, 0]]], mx.float32)


def test_no_ids_give_no_rows() -> None:
    packed = pack(Format("affine", 8, 32), 9, 64)
    assert kernels.embedding(mx.zeros((1, 0), dtype=mx.int32), packed, mx.float16).shape == (1, 0, 64)


@pytest.mark.parametrize("wrong", [9, -1])
def test_an_id_outside_the_table_is_an_error_not_a_stray_read(wrong: int) -> None:
    packed = pack(Format("affine", 4, 64), 9, 64)
    with pytest.raises(RuntimeError, match=f"embedding: id {wrong} is not in a table of 9 rows"):
        mx.eval(kernels.embedding(mx.array([wrong]), packed, mx.float32))
    assert_near(kernels.embedding(mx.array([8]), packed, mx.float32), truth(packed)[[8]], mx.float32)
