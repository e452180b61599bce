"""Layers that stay quantized: equal to float layers that hold the dequantized values."""

from __future__ import annotations

from typing import Any

import gguf
import mlx.core as mx
import numpy as np
import pytest
import zoo
import zoo_model
from mlx.utils import tree_flatten

from umlm import kernels
from umlm.kernels import Format, Packed
from umlm.models import Decoder
from umlm.nn import Embedding, Linear, RMSNorm
from umlm.quant import PackedEmbedding, PackedLinear, replace

FORMATS = [Format("affine", 4, 32), Format("affine", 8, 32), Format("mxfp4", 4, 32), Format("gguf", 0, 32, "Q5_1")]
every_format = pytest.mark.parametrize("form", FORMATS, ids=str)
ROWS, COLUMNS = 12, 96


def quantized(weight: mx.array, form: Format) -> Packed:
    if form.ggml_type is not None:
        blocks = gguf.quantize(np.array(weight), gguf.GGMLQuantizationType[form.ggml_type])
        return Packed(form, weight.shape, mx.array(blocks))
    return Packed(form, weight.shape, *mx.quantize(weight, form.group_size, form.bits, form.mode))


def random_matrix(form: Format, seed: int = 1) -> Packed:
    values = np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    return quantized(mx.array(values), form)


def names(parameters: Any) -> set[str]:
    return set(dict(tree_flatten(parameters)))


def assert_close(found: mx.array, expected: mx.array) -> None:
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=0, atol=2e-5)


@every_format
@pytest.mark.parametrize("biased", [False, True])
def test_linear_equals_the_float_layer(form: Format, biased: bool) -> None:
    packed, x = random_matrix(form), mx.random.normal((1, 5, COLUMNS), key=mx.random.key(2))
    plain = Linear(COLUMNS, ROWS, biased)
    plain.weight = kernels.dequantize(packed)
    if biased:
        plain.bias = mx.random.normal((ROWS,), key=mx.random.key(3))
    layer = PackedLinear(packed, plain.get("bias"))
    assert_close(layer(x), plain(x))
    assert layer(x.astype(mx.bfloat16)).dtype == mx.bfloat16


@every_format
def test_embedding_equals_the_float_table(form: Format) -> None:
    packed, ids = random_matrix(form), mx.array([[3, 0, 11], [3, 3, 7]])
    plain, layer = Embedding(ROWS, COLUMNS), PackedEmbedding(packed, mx.float32)
    plain.weight = kernels.dequantize(packed)
    assert_close(layer(ids), plain(ids))
    assert_close(layer.as_linear(layer(ids)), plain.as_linear(plain(ids)))
    assert PackedEmbedding(packed, mx.float16)(ids).dtype == mx.float16


def test_parameters_are_named_as_in_an_mlx_repository() -> None:
    layer = PackedLinear(random_matrix(FORMATS[0]), mx.zeros((ROWS,)))
    assert names(layer.parameters()) == {"weight", "scales", "biases", "bias"}
    assert names(layer.trainable_parameters()) == {"bias"}
    blocks = PackedLinear(random_matrix(FORMATS[3]))
    assert names(blocks.parameters()) == {"weight"}


@every_format
def test_gradient_flows_to_x(form: Format) -> None:
    """What an adapter before a quantized layer trains through."""
    packed = random_matrix(form)
    layer, matrix = PackedLinear(packed, mx.ones((ROWS,))), kernels.dequantize(packed)
    x = mx.random.normal((1, 3, COLUMNS), key=mx.random.key(4))
    found = mx.grad(lambda x: mx.square(layer(x)).sum())(x)
    assert_close(found / 100, mx.grad(lambda x: mx.square(x @ matrix.T + 1).sum())(x) / 100)


def matrices(model: Decoder) -> list[str]:
    """Paths of all layers that may be quantized."""
    return [path for path, layer in model.named_modules() if isinstance(layer, Linear | Embedding)]


CONFIG = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_attention_heads": 4}


def replaced(name: str, form: Format) -> tuple[Decoder, Decoder]:
    """A tiny model quantized, and its twin with the dequantized values in float layers."""
    packed_model, float_model = (zoo_model.load_changed(name, **CONFIG) for _ in range(2))
    for path in matrices(float_model):
        packed = quantized(dict(float_model.named_modules())[path].weight, form)
        replace(packed_model, path, packed)
        float_model.load_weights([(f"{path}.weight", kernels.dequantize(packed))], strict=False)
    return packed_model, float_model


@every_format
@pytest.mark.parametrize("name", ["llama", "llama_tied", "qwen2", "phi3", "gemma3"])
def test_a_model_of_packed_layers_answers_as_the_dequantized_one(name: str, form: Format) -> None:
    packed_model, float_model = replaced(name, form)
    assert matrices(packed_model) == []
    tokens = zoo.CASES[name].tokens[:12]
    found, expected = zoo_model.whole(packed_model, tokens), zoo_model.whole(float_model, tokens)
    assert np.abs(found - expected).max() <= 2e-5 * np.ptp(expected)


def test_replace_keeps_a_linear_s_bias() -> None:
    model = zoo_model.load_changed("qwen2", **CONFIG)
    layer = model.model.layers[1].self_attn
    bias = layer.q_proj.bias
    replace(model, "model.layers.1.self_attn.q_proj", quantized(layer.q_proj.weight, FORMATS[0]))
    assert isinstance(layer.q_proj, PackedLinear)
    assert mx.array_equal(layer.q_proj.bias, bias)


def test_replace_refuses_a_layer_that_holds_no_matrix() -> None:
    model = zoo_model.load_changed("llama", **CONFIG)
    with pytest.raises(ValueError, match=f"model.norm is a {RMSNorm.__name__}, which cannot be quantized"):
        replace(model, "model.norm", random_matrix(FORMATS[0]))
