"""Bytes of keys and values, how many pages fit, and what is said where they do not."""

from __future__ import annotations

import pytest

from umlm.cache.budget import (
    KV_BITS,
    RESERVE,
    Demand,
    KVBits,
    KVMemory,
    Layout,
    in_units,
    kv_bytes_per_token,
    page_bytes,
    parse_kv_memory,
    plan_pages,
)
from umlm.cache.memory import Available
from umlm.nn import AttentionSpec

LARGE = [AttentionSpec(num_kv_heads=8, head_dim=128, v_head_dim=128)] * 80
MIB, GIB = 2**20, 2**30
ALL = KVMemory(share=1.0)


def layout(**more: object) -> Layout:
    return Layout(LARGE, **more)  # type: ignore[arg-type]


def limit(nbytes: float) -> Available:
    return Available(int(nbytes), "system memory")


def test_bytes_of_an_80_layer_model() -> None:
    """G1, G2."""
    assert kv_bytes_per_token(LARGE) == 327_680
    assert page_bytes(LARGE, 16) == layout().page_bytes == 5 * MIB
    assert page_bytes(LARGE, 32) == layout(page_size=32).page_bytes == 10 * MIB
    assert 8192 * kv_bytes_per_token(LARGE) == 2.5 * GIB


def test_keys_and_values_may_differ_in_width() -> None:
    assert kv_bytes_per_token([AttentionSpec(2, 192, 128)], bytes_per_value=1) == 2 * (192 + 128)


def test_quantized_pages_by_their_rows() -> None:
    """Of 128 dims: 128 or 64 bytes of codes and 4 groups of 4 bytes; keys and values each by their own."""
    row = {None: 256, 8: 144, 4: 80}
    for keys, values in ((8, 8), (4, 4), (8, 4), (None, 8), (None, None)):
        assert kv_bytes_per_token(LARGE, bits=KVBits(keys, values)) == 80 * 8 * (row[keys] + row[values])
    assert KV_BITS["k8v4"] == KVBits(8, 4) and KV_BITS["none"] == KVBits(None, None)
    for bits in KV_BITS.values():
        plan = plan_pages(layout(bits=bits), Demand(), limit(64 * GIB))
        assert plan.page_bytes == 16 * kv_bytes_per_token(LARGE, bits=bits)
        assert plan.num_pages == (64 * GIB - RESERVE) * 8 // 10 // (plan.page_bytes + plan.page_bytes // 80)


def test_pages_are_cut_from_what_the_rest_leaves() -> None:
    demand = Demand(weights=40 * GIB, activations=2 * GIB)
    plan = plan_pages(layout(), demand, limit(64 * GIB), kv_memory=KVMemory(share=0.5))
    each = 5 * MIB + 5 * MIB // 80  # and one layer of it twice while arrays grow
    assert plan.num_pages == (64 * GIB - demand.total) // 2 // each
    assert (plan.num_tokens, plan.page_bytes) == (plan.num_pages * 16, 5 * MIB)
    assert plan.total == demand.total + plan.num_pages * each <= 64 * GIB


def test_the_reserve_grows_with_weights_and_activations() -> None:
    assert Demand().reserve == RESERVE
    assert Demand(weights=32 * GIB).reserve == RESERVE + GIB
    assert Demand(activations=100 * MIB).reserve == RESERVE + 100 * MIB
    assert Demand(activations=GIB).reserve == RESERVE + 256 * MIB


def test_no_more_pages_than_are_used() -> None:
    assert plan_pages(layout(), Demand(), limit(64 * GIB), max_pages=63).num_pages == 63


def test_bytes_for_pages_are_all_they_get() -> None:
    plan = plan_pages(layout(), Demand(), limit(64 * GIB), kv_memory=KVMemory(nbytes=GIB))
    assert GIB - plan.page_bytes - plan.grown_bytes < plan.pages <= GIB


def test_a_number_of_pages_is_taken_as_it_is() -> None:
    assert plan_pages(layout(), Demand(), limit(64 * GIB), num_pages=7, kv_memory=KVMemory(nbytes=1)).num_pages == 7


def test_a_model_without_attention_takes_no_memory() -> None:
    assert plan_pages(Layout([]), Demand(), limit(GIB), max_pages=7).num_pages == 7


@pytest.mark.parametrize(
    "options",
    [{}, {"num_pages": 10**6}, {"kv_memory": KVMemory(nbytes=64 * GIB)}, {"min_pages": 10**4, "kv_memory": ALL}],
    ids=["weights", "pages", "bytes", "context"],
)
def test_what_does_not_fit_is_refused_with_the_numbers(options: dict[str, object]) -> None:
    weights = 40 * GIB if not options else GIB
    with pytest.raises(ValueError, match="not enough memory: ") as error:
        plan_pages(layout(), Demand(weights, 2 * GIB), limit(36 * GIB), **options)  # type: ignore[arg-type]
    words = str(error.value)
    assert "\n" not in words
    assert f"weights {in_units(weights)}, activations 2,048.0 MiB, reserve " in words
    assert "36.0 GiB available (system memory)" in words
    for remedy in ("smaller context", "kv_bits", "smaller or more quantized model"):
        assert remedy in words


def test_what_fits_exactly_is_taken() -> None:
    demand = Demand(GIB, GIB)
    each = layout().page_bytes + layout().grown_bytes
    exact = limit(demand.total + 3 * each)
    assert plan_pages(layout(), demand, exact, kv_memory=ALL).num_pages == 3
    assert plan_pages(layout(), demand, exact, num_pages=3).total == exact.nbytes
    with pytest.raises(ValueError, match="not enough memory"):
        plan_pages(layout(), demand, limit(exact.nbytes - 1), num_pages=3)


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("auto", KVMemory()),
        ("0.5", KVMemory(share=0.5)),
        (0.5, KVMemory(share=0.5)),
        (1, KVMemory(share=1.0)),
        ("8GiB", KVMemory(nbytes=8 * GIB)),
        ("8gib", KVMemory(nbytes=8 * GIB)),
        ("8 GiB", KVMemory(nbytes=8 * GIB)),
        ("1.5MiB", KVMemory(nbytes=3 * 2**19)),
        ("500MB", KVMemory(nbytes=500_000_000)),
        ("2kB", KVMemory(nbytes=2000)),
        ("1TiB", KVMemory(nbytes=2**40)),
        ("100B", KVMemory(nbytes=100)),
    ],
)
def test_forms_of_kv_memory(value: str | float, meant: KVMemory) -> None:
    assert parse_kv_memory(value) == meant


@pytest.mark.parametrize(
    "value", ["", "8", "0", "-1", "1.1", "8Gi", "8G", "GiB", "-8GiB", "nan", "inf", "half", "1e-1GiB", 2]
)
def test_what_is_no_kv_memory_is_named(value: str | float) -> None:
    with pytest.raises(ValueError) as error:
        parse_kv_memory(value)
    assert str(error.value) == (
        f"kv_memory must be auto, a share greater than 0 and at most 1, or a size such as 8GiB, not {value!r}"
    )


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [(0, "0.0 KiB"), (512, "0.5 KiB"), (3 * MIB // 2, "1.5 MiB"), (9 * GIB, "9,216.0 MiB"), (20 * GIB, "20.0 GiB")],
)
def test_sizes_for_people(nbytes: int, shown: str) -> None:
    assert in_units(nbytes) == shown
