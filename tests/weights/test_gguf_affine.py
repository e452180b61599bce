"""Lossless repacking of ggml blocks to MLX's affine layout, against the `gguf` package."""

import gguf
import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from umlm.kernels.packed import Packed
from umlm.weights.gguf_affine import AFFINE, STEP, affine_format, affine_from_blocks


def values_of(packed: Packed) -> np.ndarray:
    """What MLX itself makes of the packed matrix, in float32."""
    assert packed.scales is not None and packed.biases is not None
    scales, biases = packed.scales.astype(mx.float32), packed.biases.astype(mx.float32)
    form = packed.format
    return np.array(mx.dequantize(packed.weight, scales, biases, form.group_size, form.bits))


def quantized(ggml_type: str, shape: tuple[int, ...], scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of a random matrix and the values that the gguf package reads from them."""
    matrix = (np.random.default_rng(4).standard_normal(shape) * scale).astype(np.float32)
    kind = GGMLQuantizationType[ggml_type]
    blocks = gguf.quantize(matrix, kind)
    return blocks, gguf.dequantize(blocks, kind)


@pytest.mark.parametrize("ggml_type", AFFINE)
def test_mlx_reads_exactly_the_gguf_values(ggml_type: str) -> None:
    blocks, expected = quantized(ggml_type, (24, 320))
    packed = affine_from_blocks(blocks, ggml_type, (24, 320))
    assert packed is not None and packed.format == affine_format(ggml_type)
    assert packed.scales is not None and packed.scales.dtype == mx.float16 and packed.scales.shape == (24, 10)
    np.testing.assert_array_equal(values_of(packed), expected)


@pytest.mark.parametrize("ggml_type", AFFINE)
def test_mlx_multiplies_with_it(ggml_type: str) -> None:
    blocks, expected = quantized(ggml_type, (16, 64))
    packed = affine_from_blocks(blocks, ggml_type, (16, 64))
    assert packed is not None and packed.scales is not None and packed.biases is not None
    x = np.random.default_rng(5).standard_normal((3, 64)).astype(np.float32)
    scales, biases = packed.scales.astype(mx.float32), packed.biases.astype(mx.float32)
    found = mx.quantized_matmul(mx.array(x), packed.weight, scales, biases, group_size=32, bits=packed.format.bits)
    np.testing.assert_allclose(np.array(found), x.astype(np.float64) @ expected.T, rtol=1e-4, atol=1e-4)


def test_stacks_of_matrices_and_more_blocks_than_one_step() -> None:
    blocks, expected = quantized("Q5_0", (2, 520, 1024))
    assert blocks.size // 22 > STEP
    packed = affine_from_blocks(blocks, "Q5_0", (2, 520, 1024))
    assert packed is not None and packed.shape == (2, 520, 1024) and packed.weight.shape == (2, 520, 160)
    np.testing.assert_array_equal(values_of(packed), expected)


@pytest.mark.parametrize(("ggml_type", "scale"), [("Q4_0", 1e5), ("Q5_0", 1.5e5), ("Q8_0", 1e5)])
def test_an_offset_beyond_float16_is_not_packed(ggml_type: str, scale: float) -> None:
    """8, 16 or 128 times the scale is infinite in float16, where scale * integer is an ordinary number."""
    blocks, expected = quantized(ggml_type, (2, 64), scale)
    assert np.isfinite(expected).all()
    assert affine_from_blocks(blocks, ggml_type, (2, 64)) is None


def test_tiny_scales_are_exact() -> None:
    """Scales below float16's normal range keep their value, and so do their offsets."""
    for ggml_type in AFFINE:
        blocks, expected = quantized(ggml_type, (4, 64), 1e-5)
        packed = affine_from_blocks(blocks, ggml_type, (4, 64))
        assert packed is not None
        np.testing.assert_array_equal(values_of(packed), expected)


def test_other_types_have_no_affine_format() -> None:
    assert affine_format("Q4_K") is None and affine_format("IQ4_NL") is None
