"""Bytes of keys and values, and how many pages fit."""

import psutil
import pytest

from umlm.cache.budget import KV_BITS, KVBits, available_memory, cgroup_rest, kv_bytes_per_token, page_bytes, plan_pages
from umlm.nn import AttentionSpec

LARGE = [AttentionSpec(num_kv_heads=8, head_dim=128, v_head_dim=128)] * 80
GIB = 2**30


def test_quantized_pages_by_their_rows() -> None:
    """Of 128 dims: 128 or 64 bytes of codes and 4 groups of 4 bytes; keys and values each by their own."""
    row = {None: 256, 8: 144, 4: 80}
    for keys, values in ((8, 8), (4, 4), (8, 4), (None, 8), (None, None)):
        assert kv_bytes_per_token(LARGE, bits=KVBits(keys, values)) == 80 * 8 * (row[keys] + row[values])
    assert KV_BITS["k8v4"] == KVBits(8, 4) and KV_BITS["none"] == KVBits(None, None)
    plans = [plan_pages(LARGE, memory=64 * GIB, bits=bits) for bits in KV_BITS.values()]
    assert [plan.page_bytes for plan in plans] == [16 * kv_bytes_per_token(LARGE, bits=b) for b in KV_BITS.values()]
    assert [plan.num_pages for plan in plans] == [int(64 * GIB * 0.8) // plan.page_bytes for plan in plans]


def test_bytes_of_an_80_layer_model():
    assert kv_bytes_per_token(LARGE) == 327_680
    assert page_bytes(LARGE, 16) == 5 * 2**20
    assert page_bytes(LARGE, 32) == 10 * 2**20
    assert 8192 * kv_bytes_per_token(LARGE) == 2.5 * GIB


def test_keys_and_values_may_differ_in_width():
    assert kv_bytes_per_token([AttentionSpec(2, 192, 128)], bytes_per_value=1) == 2 * (192 + 128)


def test_pages_are_cut_from_what_weights_and_activations_leave():
    plan = plan_pages(LARGE, weights_bytes=40 * GIB, activation_bytes=2 * GIB, memory=64 * GIB, fraction=0.75)
    assert plan.num_pages == 6 * GIB // (5 * 2**20)
    assert plan.num_tokens == plan.num_pages * 16


def test_no_more_pages_than_are_wanted():
    assert plan_pages(LARGE, memory=64 * GIB, max_tokens=1000, page_size=16).num_pages == 63


def test_a_model_without_attention_takes_no_memory():
    assert plan_pages([], memory=GIB, max_tokens=100).num_pages == 7


def test_what_does_not_fit_is_refused_with_the_numbers():
    with pytest.raises(ValueError, match=r"weights 40\.00 GiB .* 80% of 48\.00 GiB") as error:
        plan_pages(LARGE, weights_bytes=40 * GIB, memory=48 * GIB)
    assert "\n" not in str(error.value)


def test_available_memory_is_the_least_of_its_limits():
    assert 0 < available_memory() <= psutil.virtual_memory().total
    assert available_memory(device_limit=1000) == 1000


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_version_2_control_group_and_its_parents(tmp_path):
    write(tmp_path, membership="0::/slice/job\n")
    write(tmp_path / "root/slice", memory__max="1000\n", memory__current="600\n", memory__stat="inactive_file 100\n")
    write(tmp_path / "root/slice/job", memory__max="max\n", memory__current="500\n", memory__stat="inactive_file 0\n")
    assert cgroup_rest(tmp_path / "root", tmp_path / "membership") == 500


def test_version_1_control_group(tmp_path):
    write(tmp_path, membership="5:cpu,cpuacct:/\n4:memory:/job\n")
    files = {"memory__limit_in_bytes": "1000", "memory__usage_in_bytes": "1200"}
    write(tmp_path / "root/memory/job", **files, memory__stat="cache 1\ntotal_inactive_file 100")
    assert cgroup_rest(tmp_path / "root", tmp_path / "membership") == 0


def test_no_control_group_is_no_limit(tmp_path):
    assert cgroup_rest(tmp_path, tmp_path / "none") is None
