"""The ops once more, in float64 numpy, written from their formulas; and how near an op must come.

Inputs are the very values that the op got, in float64: what may differ is the sums' float32 and the output's
rounding to its dtype.
"""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

FLOATS = (mx.float32, mx.float16, mx.bfloat16)
# relative to the norm: float32 arithmetic, plus half a unit in the last place of the output
NEAR = {mx.float32: 1e-5, mx.float16: 2**-11 + 1e-5, mx.bfloat16: 2**-8 + 1e-5}


def wide(array: mx.array) -> np.ndarray:
    """The array's values, exactly."""
    return np.array(array.astype(mx.float32)).astype(np.float64)


def draw(rng: np.random.Generator, *shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(rng.standard_normal(shape).astype(np.float32)).astype(dtype)


def assert_near(found: mx.array, expected: np.ndarray, dtype: mx.Dtype) -> None:
    """The op's answer has this dtype and shape and lies within NEAR of the norm."""
    assert found.dtype == dtype and found.shape == expected.shape, (found.dtype, found.shape, expected.shape)
    gap = np.linalg.norm(wide(found) - expected) / max(float(np.linalg.norm(expected)), 1e-30)
    assert gap <= NEAR[dtype], f"off by {gap:.1e} of the norm, {NEAR[dtype]:.1e} allowed"


def rms_norm(x: np.ndarray, weight: np.ndarray | None, eps: float) -> np.ndarray:
    y = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)
    return y if weight is None else y * weight


def rope(x: np.ndarray, angles: np.ndarray, scale: float) -> np.ndarray:
    """x [B, T, H, D], angles [T, half]: each pair (i, i + half) as a complex number times e^(i angle)."""
    half = angles.shape[-1]
    turned = (x[..., :half] + 1j * x[..., half : 2 * half]) * (scale * np.exp(1j * angles))[None, :, None, :]
    return np.concatenate([turned.real, turned.imag, x[..., 2 * half :]], axis=-1)


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x - np.logaddexp.reduce(x, axis=-1, keepdims=True)) if x.size else x


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))


def gelu(x: np.ndarray) -> np.ndarray:
    """x times the normal distribution's cumulative probability. arXiv:1606.08415"""
    return x * 0.5 * np.vectorize(math.erfc)(-x / math.sqrt(2))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


ACTIVATIONS = {
    "silu": lambda x: x * sigmoid(x),
    "swish": lambda x: x * sigmoid(x),
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": lambda x: np.where(x > 0, x, 0),
    "relu2": lambda x: np.where(x > 0, x, 0) ** 2,
}


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    q_positions: np.ndarray,
    k_positions: np.ndarray,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    """One query and one head at a time, over the keys it may see. q [B, T, H, D], k and v [B, S, Hkv, D]."""
    out = np.empty((*q.shape[:3], v.shape[-1]))
    for b, t, h in np.ndindex(*q.shape[:3]):
        place, group = q_positions[t], h // (q.shape[2] // k.shape[2])
        seen = k_positions <= place
        if window is not None:
            seen &= k_positions > place - window
        scores = scale * k[b, seen, group] @ q[b, t, h]
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        top = max(scores.max(), -np.inf if sinks is None else sinks[h])
        weights = np.exp(scores - top)
        total = weights.sum() + (0 if sinks is None else np.exp(sinks[h] - top))
        out[b, t, h] = weights @ v[b, seen, group] / total
    return out


# Values of the small floats of the OCP microscaling formats, by their bits.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
_bits = np.arange(256)
_fraction, _exponent, _sign = _bits % 8, _bits // 8 % 16, np.where(_bits < 128, 1, -1)
E4M3 = _sign * np.where(_exponent == 0, _fraction / 8 * 2.0**-6, (1 + _fraction / 8) * 2.0 ** (_exponent - 7.0))
E8M0 = 2.0 ** (_bits - 127)


def codes(weight: mx.array, bits: int) -> np.ndarray:
    """The integers of an MLX matrix: a row is one stream of bits, lowest first. uint32 [rows, words] -> [rows, n]."""
    stream = np.unpackbits(np.array(weight).view(np.uint8), axis=-1, bitorder="little")
    return stream.reshape(weight.shape[0], -1, bits) @ (1 << np.arange(bits))


def dequantize(
    mode: str, bits: int, group_size: int, weight: mx.array, scales: mx.array, biases: mx.array | None
) -> np.ndarray:
    """Values of a matrix in one of MLX's layouts."""
    q = codes(weight, bits)
    spread = lambda values: np.repeat(values, group_size, axis=-1)
    if mode == "affine":
        assert biases is not None
        return spread(wide(scales)) * q + spread(wide(biases))
    values = E4M3 if mode == "mxfp8" else E2M1
    return values[q] * spread((E4M3 if mode == "nvfp4" else E8M0)[np.array(scales)])


def bfloat16(bits: np.ndarray) -> np.ndarray:
    """Values of bfloat16 numbers by their 16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def kept_groups(rows: mx.array, bits: int, dims: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scales and offsets of groups of 32 dims, [..., groups], and codes [..., dims] of quantized rows of pages."""
    data, groups = np.array(rows), -(-dims // 32)
    pairs = bfloat16(np.ascontiguousarray(data[..., : 4 * groups]).view("<u2"))
    codes = np.ascontiguousarray(data[..., 4 * groups :])
    if bits == 4:
        words = codes.view("<u4").reshape(*codes.shape[:-1], -1, 1, 2)  # [.., piece of 16 dims, 1, even or odd dim]
        codes = (words >> (4 * np.arange(8, dtype=np.uint32))[:, None] & 15).reshape(*codes.shape[:-1], -1)
    return pairs[..., 0::2], pairs[..., 1::2], codes[..., :dims]


def kept(rows: mx.array, bits: int, dims: int) -> np.ndarray:
    """The values [..., dims] of quantized rows of pages."""
    scales, offsets, codes = kept_groups(rows, bits, dims)
    spread = lambda each: np.repeat(each, 32, axis=-1)[..., :dims]
    return spread(scales) * codes + spread(offsets)
