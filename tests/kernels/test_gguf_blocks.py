"""ggml blocks against the `gguf` package's own dequantization, type by type."""

import gguf
import mlx.core as mx
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from umlm.kernels.gguf_blocks import BLOCKS, dequantize_blocks, row_bytes

# Where the float16 scales of each type lie in its block; the rest of a block may be any bytes.
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "IQ1_S": (0,), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,),
    "IQ4_NL": (0,), "IQ4_XS": (0,), "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip


def random_blocks(ggml_type: str, count: int, seed: int) -> np.ndarray:
    """Blocks of random bits with scales near 0.01: uint8 [count, bytes]."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (count, BLOCKS[ggml_type][1]), dtype=np.uint8)
    for at in HALVES.get(ggml_type, ()):
        blocks[:, at : at + 2] = (rng.standard_normal((count, 1)) / 100).astype(np.float16).view(np.uint8)
    if ggml_type == "IQ1_M":  # its scale is spread over four nibbles: keep the exponent below the infinities
        blocks[:, 55] &= 0x2F
    if ggml_type == "MXFP4":
        blocks[:, 0] = rng.integers(0, 140, count)
    if ggml_type == "BF16":
        blocks[:, 1] &= 0xBF
    return blocks


def expected(blocks: np.ndarray, ggml_type: str) -> np.ndarray:
    return gguf.dequantize(blocks, GGMLQuantizationType[ggml_type])


def dequantizable() -> list[str]:
    return [kind.name for kind in gguf.quants._type_traits]


def test_covers_every_type_the_gguf_package_dequantizes() -> None:
    assert set(BLOCKS) == set(dequantizable())
    assert {name: GGML_QUANT_SIZES[GGMLQuantizationType[name]] for name in BLOCKS} == BLOCKS


@pytest.mark.parametrize("ggml_type", BLOCKS)
def test_random_blocks_equal_the_gguf_package(ggml_type: str) -> None:
    rows, blocks_per_row = 5, 6
    blocks = random_blocks(ggml_type, rows * blocks_per_row, seed=7).reshape(rows, -1)
    columns = BLOCKS[ggml_type][0] * blocks_per_row
    found = np.array(dequantize_blocks(mx.array(blocks), ggml_type, columns))
    assert found.shape == (rows, columns) and found.dtype == np.float32
    np.testing.assert_array_equal(found, expected(blocks, ggml_type).reshape(rows, columns))


def test_all_mxfp4_exponents_and_nvfp4_scales() -> None:
    rng = np.random.default_rng(3)
    for ggml_type, scale_bytes in (("MXFP4", 1), ("NVFP4", 4)):
        blocks = rng.integers(0, 256, (256, BLOCKS[ggml_type][1]), dtype=np.uint8)
        blocks[:, :scale_bytes] = np.arange(256)[:, None]
        if ggml_type == "MXFP4":
            blocks = blocks[:255]  # 255 means NaN in the standard; ggml gives a finite value for it, and so do we
        found = np.array(dequantize_blocks(mx.array(blocks), ggml_type, BLOCKS[ggml_type][0]))
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(found, expected(blocks, ggml_type))


@pytest.mark.parametrize("ggml_type", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "TQ1_0", "TQ2_0", "MXFP4"])
def test_g07_quantized_normal_matrix(ggml_type: str) -> None:
    """Field case G07: skipping block heads by a wrong length gave right shapes and wrong numbers."""
    matrix = np.random.default_rng(1).standard_normal((8, 256)).astype(np.float32)
    packed = gguf.quantize(matrix, GGMLQuantizationType[ggml_type])
    found = np.array(dequantize_blocks(mx.array(packed), ggml_type, 256))
    np.testing.assert_array_equal(found, expected(packed, ggml_type))


def test_leading_axes_and_dtype() -> None:
    blocks = random_blocks("Q4_K", 2 * 3, seed=2).reshape(2, 3, -1)
    found = dequantize_blocks(mx.array(blocks), "Q4_K", 256, mx.float16)
    assert found.shape == (2, 3, 256) and found.dtype == mx.float16
    whole = expected(blocks, "Q4_K").reshape(2, 3, 256)
    np.testing.assert_array_equal(np.array(found), whole.astype(np.float16))


def test_zero_and_subnormal_scales() -> None:
    blocks = random_blocks("Q8_0", 4, seed=5)
    blocks[:, :2] = np.array([0.0, -0.0, 6e-8, -6e-5], dtype=np.float16).view(np.uint8).reshape(4, 2)
    found = np.array(dequantize_blocks(mx.array(blocks), "Q8_0", 32))
    np.testing.assert_array_equal(found, expected(blocks, "Q8_0"))


def test_errors_name_the_type_and_the_numbers() -> None:
    with pytest.raises(ValueError, match="'Q9_9' is unknown"):
        row_bytes("Q9_9", 32)
    with pytest.raises(ValueError, match="Q4_K rows hold multiples of 256 values, not 100"):
        row_bytes("Q4_K", 100)
    with pytest.raises(ValueError, match=r"of 34 bytes, not .* of 33"):
        dequantize_blocks(mx.zeros((1, 33), dtype=mx.uint8), "Q8_0", 32)
