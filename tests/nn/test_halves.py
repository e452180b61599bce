"""Fused halves of blocks: the same numbers as op by op, pages in place, remade when a matrix is another."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest
import zoo
import zoo_model

from umlm import kernels
from umlm.cache.batch import Batch
from umlm.cache.budget import FLOATS, KVBits
from umlm.cache.store import PageStore
from umlm.models import Decoder
from umlm.quant import replace

CASES = [
    "llama",
    "llama_biases",
    "llama_dynamic",
    "mistral_window",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
    "phi3",
]
PAGE = 4


@pytest.fixture
def op_by_op(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kernels, "halves_serve", lambda: False)
    yield


def batch(tokens: np.ndarray, start: int, stop: int) -> Batch:
    """Tokens start .. stop of one sequence whose pages lie in reverse."""
    pages = list(range(-(-len(tokens) // PAGE)))[::-1]
    positions = np.arange(start, stop, dtype=np.int32)
    slots = np.array(pages, dtype=np.int32)[positions // PAGE] * PAGE + positions % PAGE
    return Batch(
        tokens=mx.array(tokens[None, start:stop]),
        positions=mx.array(positions),
        lengths=mx.full(positions.shape, len(tokens), dtype=mx.int32),
        slots=mx.array(slots.astype(np.int32)),
        page_table=[pages],
        starts=[0, stop - start],
        contexts=[stop],
        sample_at=mx.arange(stop - start, dtype=mx.int32),
    )


def logits(model: Decoder, tokens: np.ndarray, chunk: int, bits: KVBits = FLOATS) -> np.ndarray:
    store = PageStore(model.state_specs(), -(-len(tokens) // PAGE), PAGE, model.dtype, bits)
    parts = []
    for start in range(0, len(tokens), chunk):
        row = batch(tokens, start, min(start + chunk, len(tokens)))
        parts.append(np.array(model(row.tokens, store.states(row), at=row.sample_at).astype(mx.float32)))
    return np.concatenate(parts)


def quantized(model: Decoder) -> Decoder:
    """Every matrix whose columns groups of 32 divide, in 4 bits."""
    for index, layer in enumerate(model.model.layers):
        for name in ("gate_proj", "up_proj", "q_proj", "k_proj", "v_proj"):
            part = "mlp" if name in layer.mlp else "self_attn"
            weight = layer[part][name].weight if name in layer[part] else None
            if weight is not None and weight.shape[1] % 32 == 0:
                arrays = mx.quantize(weight, 32, 4)
                packed = kernels.Packed(kernels.Format("affine", 4, 32), weight.shape, *arrays)
                replace(model, f"model.layers.{index}.{part}.{name}", packed)
    return model


DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


def cast(model: Decoder, dtype: str) -> Decoder:
    model.set_dtype(DTYPES[dtype])
    return model


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("name", CASES)
def test_same_numbers_op_by_op(name: str, chunk: int, dtype: str, request: pytest.FixtureRequest) -> None:
    model, tokens = cast(zoo_model.load_changed(name), dtype), zoo.CASES[name].tokens
    assert kernels.halves_serve() and model.dtype == DTYPES[dtype]
    fused = logits(model, tokens, chunk)
    request.getfixturevalue("op_by_op")
    np.testing.assert_array_equal(fused, logits(model, tokens, chunk))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3"])
def test_same_numbers_op_by_op_quantized(name: str, dtype: str, request: pytest.FixtureRequest) -> None:
    model, tokens = cast(quantized(zoo_model.load_changed(name)), dtype), zoo.CASES[name].tokens
    fused = logits(model, tokens, 7)
    request.getfixturevalue("op_by_op")
    np.testing.assert_array_equal(fused, logits(model, tokens, 7))


@pytest.mark.parametrize("bits", [KVBits(8, 8), KVBits(8, 4), KVBits(None, 8), KVBits(4, None)])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "phi3"])
def test_same_numbers_op_by_op_and_in_any_chunks_with_quantized_pages(
    name: str, bits: KVBits, request: pytest.FixtureRequest
) -> None:
    """Every query reads its own key from the page, as later queries do: chunks of 1 and of 64 are the same."""
    model, tokens = zoo_model.load_case(name), zoo.CASES[name].tokens
    fused = logits(model, tokens, 64, bits)
    assert (fused != logits(model, tokens, 64)).any()
    for chunk in (1, 7):
        np.testing.assert_array_equal(logits(model, tokens, chunk, bits), fused)
    request.getfixturevalue("op_by_op")
    np.testing.assert_array_equal(logits(model, tokens, 7, bits), fused)


def test_halves_follow_the_weights() -> None:
    """A matrix that is set anew, or a layer that is replaced, counts from the next call on."""
    model, tokens = zoo_model.load_case("llama"), zoo.CASES["llama"].tokens
    before = logits(model, tokens, 64)
    layer = model.model.layers[0]
    layer.mlp.up_proj.weight = 2 * layer.mlp.up_proj.weight
    layer.mlp.down_proj.weight = layer.mlp.down_proj.weight / 2
    np.testing.assert_allclose(logits(model, tokens, 64), before, atol=1e-4 * np.ptp(before))
    layer.self_attn.o_proj.weight = mx.zeros_like(layer.self_attn.o_proj.weight)
    assert np.abs(logits(model, tokens, 64) - before).max() > 0.02 * np.ptp(before)


def test_all_blocks_follow_the_list_of_layers(request: pytest.FixtureRequest) -> None:
    """A block that takes another's place counts from the next call on, as op by op."""
    model, tokens = zoo_model.load_changed("llama"), zoo.CASES["llama"].tokens
    before = logits(model, tokens, 64)
    layers = model.model.layers
    layers[0], layers[1] = layers[1], layers[0]
    after = logits(model, tokens, 64)
    assert (after != before).any()
    request.getfixturevalue("op_by_op")
    np.testing.assert_array_equal(after, logits(model, tokens, 64))


@pytest.mark.parametrize("bits", [FLOATS, KVBits(8, 4)])
def test_pages_are_written_in_place(bits: KVBits) -> None:
    """A decode step's peak memory stays far below one copy of the pages."""
    model, tokens = zoo_model.load_case("llama"), zoo.CASES["llama"].tokens
    store = PageStore(model.state_specs(), 256 * 1024 // PAGE, PAGE, mx.float32, bits)
    store._reach(store.num_pages - 1)
    one = store.values[0].nbytes
    for start in range(8):
        row = batch(tokens, start, start + 1)
        mx.eval(model(row.tokens, store.states(row), at=row.sample_at))
        if start == 3:
            mx.reset_peak_memory()
            held = mx.get_active_memory()
    assert mx.get_peak_memory() - held < one / 8
