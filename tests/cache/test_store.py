"""Pages against a whole computation: any page size, chunk and company; windows exact; writes in place."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest
import zoo_model
from zoo_model import Run, load_changed, paged, whole

from umlm.cache.batch import Batch
from umlm.cache.budget import FLOATS, KVBits, kv_bytes_per_token, page_bytes
from umlm.cache.store import PageStore
from umlm.models import Decoder
from umlm.nn import AttentionSpec

MIB = 1 << 20
NAMES = ("llama", "gemma3", "phi3_long", "qwen3_window")


def tokens(model: Decoder, count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, model.config.vocab_size, count).astype(np.int32)


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.ptp(expected))


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("name", NAMES)
def test_packed_rows_of_random_chunks_equal_the_whole_sequence(
    name: str, page_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zoo_model, "PAGE_SIZE", page_size)
    model, rng = zoo_model.load_case(name), np.random.default_rng(page_size)
    sequences = [tokens(model, count, count) for count in (1, 15, 16, 17, 41)]
    runs = [Run(sequence, len(sequence), rng.integers(1, 9, 50).tolist()) for sequence in sequences]
    for found, sequence in zip(paged(model, runs), sequences, strict=True):
        assert_close(found, whole(model, sequence))


WINDOW = 4
LENGTH = 12
PATHS = {"prefill": [LENGTH], "chunks of 3": [3], "decode": [1], "prefill, then decode": [5, 1]}


def rows_that_change(model: Decoder, place: int, chunks: Sequence[int] | None) -> list[int]:
    """The places whose logits another token at `place` changes; chunks None: dense."""
    before = tokens(model, LENGTH)
    after = before.copy()
    after[place] = (after[place] + 1) % model.config.vocab_size
    both = [
        whole(model, sequence) if chunks is None else paged(model, [Run(sequence, LENGTH, chunks)])[0]
        for sequence in (before, after)
    ]
    return np.flatnonzero((both[0] != both[1]).any(axis=-1)).tolist()


@pytest.mark.parametrize("chunks", [None, *PATHS.values()], ids=["dense", *PATHS])
@pytest.mark.parametrize("name", ["mistral_window", "qwen2_window", "gemma3", "phi3_window"])
def test_k09_a_window_of_4_is_exactly_4_tokens(name: str, chunks: Sequence[int] | None) -> None:
    """Field case K09: a window counted one token too long. One windowed layer: query 5 depends on 2, 3, 4, 5."""
    model = load_changed(
        name, num_hidden_layers=1, sliding_window=WINDOW, layer_types=["sliding_attention"], sliding_window_pattern=2,
        use_sliding_window=True, max_window_layers=0,
    )  # fmt: skip
    for place in range(LENGTH):
        expected = list(range(place, min(place + WINDOW, LENGTH)))
        assert rows_that_change(model, place, chunks) == expected, f"token {place}"


def test_pages_of_16_bits_hold_rounded_keys_and_values() -> None:
    """Page dtype is the store's; the answer stays in the activations' dtype, near the exact one."""
    model = zoo_model.load_case("llama")
    sequence = tokens(model, 9)
    store = PageStore(model.state_specs(), 3, 4, mx.float16)
    logits = model(mx.array(sequence)[None], store.states(one_row(sequence, [2, 0, 1], 0, 4)))
    assert {pages.dtype for pages in (*store.keys, *store.values)} == {mx.float16}
    assert logits.dtype == mx.float32
    gap = np.abs(np.array(logits[0]) - whole(model, sequence)).max() / np.ptp(whole(model, sequence))
    assert 0 < gap < 2e-3


def one_row(sequence: np.ndarray, pages: list[int], done: int, page_size: int) -> Batch:
    """A batch of one request: everything from place `done` on."""
    places = np.arange(done, len(sequence))
    slots = np.array(pages)[places // page_size] * page_size + places % page_size
    as_int32 = lambda values: mx.array(np.asarray(values, dtype=np.int32))
    return Batch(
        tokens=as_int32(sequence[done:])[None], positions=as_int32(places),
        lengths=as_int32(np.full(len(places), len(sequence))), slots=as_int32(slots), page_table=[pages],
        starts=[0, len(places)], contexts=[len(sequence)], sample_at=as_int32([len(places) - 1]),
    )  # fmt: skip


SPEC = AttentionSpec(4, 64, 64)  # 1 KiB of float32 keys a token


EVERY = {"float32": FLOATS, "8 bits": KVBits(8, 8), "4 bits": KVBits(4, 4)}
every_kind = pytest.mark.parametrize("bits", EVERY.values(), ids=list(EVERY))


def write_tokens(store: PageStore, pages: list[int], first: int, last: int) -> None:
    """Decode tokens first .. last: key and value of token i are full of i."""
    for place in range(first, last + 1):
        batch = one_row(np.zeros(place + 1), pages, place, store.page_size)
        filled = mx.full((1, 1, 4, 64), float(place))
        outs = [state.attend(filled, filled, filled, scale=0.0) for state in store.states(batch)]
        mx.eval(outs)
        for out in outs:  # scale 0 weighs all tokens the same: the mean of 0 .. place
            np.testing.assert_allclose(np.array(out), place / 2, rtol=1e-6)


@every_kind
def test_a_decode_step_copies_no_pages(bits: KVBits) -> None:
    """Two layers of many MiB each for keys and for values; the highest use beyond them stays below 1 MiB."""
    store = PageStore([SPEC, SPEC], 4096, 16, mx.float32, bits)
    write_tokens(store, [4095, 9], 0, 0)
    assert store.nbytes == 65536 * kv_bytes_per_token([SPEC, SPEC], 4, bits) >= 40 * MIB
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    write_tokens(store, [4095, 9], 1, 18)
    assert mx.get_peak_memory() - before < MIB


@every_kind
def test_pages_grow_with_their_use_and_keep_what_they_hold(bits: KVBits) -> None:
    store = PageStore([SPEC], 4096, 16, mx.float32, bits)
    small, most = store.nbytes, page_bytes([SPEC], 16, 4, bits) * 4096
    assert small < most / 16
    pages = [0, 300, 1, 4095]
    write_tokens(store, pages[:1], 0, 15)
    assert store.nbytes == small
    write_tokens(store, pages[:2], 16, 31)
    assert small < store.nbytes < most / 2
    write_tokens(store, pages, 32, 60)
    assert store.nbytes == most


@every_kind
def test_growing_holds_one_array_twice_at_most(bits: KVBits) -> None:
    store = PageStore([SPEC] * 4, 1024, 16, mx.float32, bits)
    write_tokens(store, [0], 0, 0)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    write_tokens(store, [0, 1023], 1, 16)
    one = store.nbytes // 8
    grown = mx.get_active_memory() - before
    assert grown <= 8 * one
    assert mx.get_peak_memory() - before < grown + one + MIB


def test_a_layer_may_keep_keys_and_values_apart() -> None:
    store = PageStore([AttentionSpec(2, 80, 48)], 8, 4, mx.bfloat16, KVBits(None, 4))
    assert store.keys[0].dtype == mx.bfloat16 and store.keys[0].shape == (32, 2, 80)
    assert store.values[0].rows.shape == (32, 2, 32) and store.values[0].bits == 4
    assert store.nbytes == 32 * 2 * (160 + 32)


BITS = {"8": (KVBits(8, 8), 0.02), "k8v4": (KVBits(8, 4), 0.2), "4": (KVBits(4, 4), 0.4)}


@pytest.mark.parametrize("kind", BITS)
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3"])
def test_quantized_pages_give_the_same_bits_in_any_company_and_chunks(name: str, kind: str) -> None:
    """Sequences packed in random chunks, each against itself alone; and not far from the whole computation."""
    model, rng, (bits, near) = zoo_model.load_case(name), np.random.default_rng(1), BITS[kind]
    sequences = [tokens(model, count, count) for count in (1, 15, 17, 41)]
    runs = [Run(sequence, len(sequence), rng.integers(1, 9, 50).tolist()) for sequence in sequences]
    for found, sequence in zip(paged(model, runs, bits), sequences, strict=True):
        alone = paged(model, [Run(sequence, len(sequence), [len(sequence)])], bits)[0]
        np.testing.assert_array_equal(found, alone)
        exact = whole(model, sequence)
        assert 0 < np.abs(found - exact).max() < near * np.ptp(exact)
