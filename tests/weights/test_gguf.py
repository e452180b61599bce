"""GGUF files as checkpoints: names, row orders, values, split sets, and files that lie."""

from __future__ import annotations

import shutil
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
import pytest
import zoo
from gguf import GGMLQuantizationType
from gguf_files import write_gguf
from mlx.utils import tree_flatten
from zoo_model import shapes, whole

from umlm.kernels import dequantize
from umlm.kernels.gguf_blocks import BLOCKS
from umlm.kernels.packed import Format, Packed
from umlm.models import build, config_from_dict
from umlm.weights import gguf as gguf_checkpoints
from umlm.weights.checkpoint import Checkpoint
from umlm.weights.gguf import open_gguf
from umlm.weights.gguf_metadata import GGUFError
from umlm.weights.load import load_model, loaded_bytes

# The zoo's cases that a GGUF file can state; the format has no place for the keys of the others.
STATABLE = (
    "llama", "llama_tied", "llama_biases", "llama_head_dim", "llama_linear", "llama_llama3", "llama_yarn",
    "llama_yarn_attention_factor", "mistral", "qwen2", "qwen2_yarn", "qwen3", "qwen3_yarn", "gemma", "gemma2",
    "gemma3", "phi3", "phi3_window", "phi3_short", "phi3_long", "phi4_mini",
)  # fmt: skip
MATRICES = zoo.CASES["llama"].config | {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 300}


@pytest.fixture(params=[True, False], ids=["kept", "repacked"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether blocks that MLX could hold as affine are kept as they lie, as where a kernel computes on them."""
    monkeypatch.setattr(gguf_checkpoints, "computes_on", lambda ggml_type: request.param)
    return request.param


def zoo_weights(name: str) -> dict[str, np.ndarray]:
    return zoo.weights(zoo.CASES[name].config, zoo.golden(name).parameters)


def write_case(path: Path, name: str, **options) -> Path:
    return write_gguf(path, zoo.CASES[name].config, zoo_weights(name), **options)


def matrices(seed: int = 0) -> dict[str, np.ndarray]:
    """Weights of a llama whose rows fit every block type."""
    return zoo.weights(MATRICES, shapes(build(config_from_dict(MATRICES))), seed)


def values(checkpoint: Checkpoint, name: str) -> np.ndarray:
    read = checkpoint.tensors[name].read()
    return np.array(dequantize(read) if isinstance(read, Packed) else read.astype(mx.float32))


@pytest.mark.parametrize("name", STATABLE)
def test_g13_logits_are_those_of_hugging_face(tmp_path: Path, name: str) -> None:
    """Field case G13: q and k rows un-permuted by the wrong head count gave fluent nonsense."""
    truth = zoo.golden(name)
    checkpoint = open_gguf(write_case(tmp_path / "model.gguf", name))
    assert {n: t.shape for n, t in checkpoint.tensors.items()} == truth.parameters
    model = build(config_from_dict(checkpoint.config))
    model.load_weights([(n, t.read()) for n, t in checkpoint.tensors.items()], strict=True)
    logits = whole(model, truth.tokens)[truth.positions]
    assert np.abs(logits - truth.logits).max() <= 1e-5 * np.ptp(truth.logits)


@pytest.mark.parametrize("name", ["llama_biases", "qwen2", "gemma3", "phi3"])
def test_values_are_hugging_face_s(tmp_path: Path, name: str) -> None:
    checkpoint, weights = open_gguf(write_case(tmp_path / "model.gguf", name)), zoo_weights(name)
    for key, expected in weights.items():
        if name.startswith("gemma") and "norm" in key:  # one added and taken off rounds once
            np.testing.assert_allclose(values(checkpoint, key), expected, rtol=0, atol=1.2e-7)
        else:
            np.testing.assert_array_equal(values(checkpoint, key), expected)


@pytest.mark.parametrize("ggml_type", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "TQ2_0"])
def test_g07_quantized_rows_are_put_in_order(tmp_path: Path, kept: bool, ggml_type: str) -> None:
    """Rows move as whole blocks: what gguf quantizes from the file's order is what we read, re-ordered."""
    weights = matrices()
    checkpoint = open_gguf(write_gguf(tmp_path / "m.gguf", MATRICES, weights, type_of=lambda name: ggml_type))
    kind = GGMLQuantizationType[ggml_type]
    for key, value in weights.items():
        expected = value if value.ndim < 2 else gguf.dequantize(gguf.quantize(value, kind), kind)
        np.testing.assert_array_equal(values(checkpoint, key), expected.reshape(value.shape))


def test_g08_a_mixed_file(tmp_path: Path, kept: bool) -> None:
    """Field case G08: a Q4_K_M file also holds Q6_K, Q5_0, Q8_0, F16 and F32; all of it must load."""
    rng, up, down = np.random.default_rng(0), "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"
    packed = {
        up: ("Q4_K", _blocks(rng, "Q4_K", [0, 2])),
        down: ("Q6_K", _blocks(rng, "Q6_K", [208])),
    }
    weights = {name: value for name, value in matrices().items() if name not in packed}
    kinds = {"q_proj": "Q5_0", "k_proj": "F16", "v_proj": "BF16", "embed_tokens": "Q8_0"}
    pick = lambda name: next((kind for part, kind in kinds.items() if part in name), "F32")
    checkpoint = open_gguf(write_gguf(tmp_path / "m.gguf", MATRICES, weights, type_of=pick, blocks=packed))
    formats = {name: checkpoint.tensors[name].format for name in (up, down, "model.embed_tokens.weight")}
    assert [str(form) for form in formats.values()] == ["Q4_K", "Q6_K", "Q8_0" if kept else "affine 8-bit group 32"]
    assert checkpoint.tensors["model.layers.0.self_attn.k_proj.weight"].format == "F16"
    for name, (kind, blocks) in packed.items():
        read = checkpoint.tensors[name].read()
        assert isinstance(read, Packed) and read.format == Format("gguf", 0, 256, kind)
        assert read.nbytes == blocks.nbytes == checkpoint.tensors[name].nbytes
        np.testing.assert_array_equal(values(checkpoint, name), gguf.dequantize(blocks, GGMLQuantizationType[kind]))


def _blocks(rng: np.random.Generator, ggml_type: str, halves: list[int]) -> np.ndarray:
    """512 rows of 256 values in random blocks with small scales at `halves`: uint8 [512, row bytes]."""
    values_per_block, size = BLOCKS[ggml_type]
    blocks = rng.integers(0, 256, (512, 256 // values_per_block, size), dtype=np.uint8)
    for at in halves:
        blocks[..., at : at + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    return blocks.reshape(512, -1)


def test_g09_rare_types_load_and_unknown_ones_are_refused_by_name(tmp_path: Path) -> None:
    """Field case G09: rare types stopped a load late, with a vague message."""
    rng, name = np.random.default_rng(1), "model.layers.{}.mlp.up_proj.weight"
    rare = {"IQ4_NL": [0], "IQ2_XXS": [0], "TQ1_0": [52]}
    packed = {
        name.format(layer): (kind, _blocks(rng, kind, halves)) for layer, (kind, halves) in enumerate(rare.items())
    }
    weights = {key: value for key, value in matrices().items() if key not in packed}
    path = write_gguf(tmp_path / "m.gguf", MATRICES, weights, blocks=packed)
    checkpoint = open_gguf(path)
    for key, (kind, blocks) in packed.items():
        expected = gguf.dequantize(blocks, GGMLQuantizationType[kind])
        np.testing.assert_array_equal(values(checkpoint, key), expected)
    unknown = path.read_bytes()
    stored = b"blk.0.ffn_up.weight"
    at = unknown.index(stored) + len(stored) + 4 + 2 * 8  # behind the count of sizes and two sizes
    path.write_bytes(unknown[:at] + b"\x63" + unknown[at + 1 :])
    with pytest.raises(GGUFError, match=r"tensor 'blk\.0\.ffn_up\.weight': tensor type 99 is unknown"):
        open_gguf(path)


def test_scales_beyond_float16_stay_in_blocks(tmp_path: Path, kept: bool) -> None:
    weights, name = matrices(), "model.layers.0.mlp.up_proj.weight"
    weights[name] = weights[name] * np.float32(1e6)
    checkpoint = open_gguf(write_gguf(tmp_path / "m.gguf", MATRICES, weights, type_of=lambda name: "Q8_0"))
    read = checkpoint.tensors[name].read()
    assert isinstance(read, Packed) and str(read.format) == "Q8_0"
    kind = GGMLQuantizationType.Q8_0
    np.testing.assert_array_equal(values(checkpoint, name), gguf.dequantize(gguf.quantize(weights[name], kind), kind))


def test_a_tensor_of_no_place_in_the_architecture_is_named(tmp_path: Path) -> None:
    path = write_case(tmp_path / "m.gguf", "llama")
    path.write_bytes(path.read_bytes().replace(b"blk.0.ffn_up.weight", b"blk.0.ffn_xy.weight"))
    with pytest.raises(GGUFError, match=r"'blk\.0\.ffn_xy\.weight' is not known to architecture 'llama'"):
        open_gguf(path)


def test_opening_reads_no_tensor_and_reading_copies_once(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", MATRICES, matrices())
    tracemalloc.start()
    checkpoint = open_gguf(path)
    assert tracemalloc.get_traced_memory()[1] < path.stat().st_size / 10
    tracemalloc.stop()
    tensor = checkpoint.tensors["model.layers.0.mlp.up_proj.weight"]
    mx.clear_cache()
    before = mx.get_active_memory()
    read = tensor.read()
    assert mx.get_active_memory() - before <= tensor.nbytes + 4096
    assert isinstance(read, mx.array) and read.dtype == mx.float32


def test_the_budget_counts_every_weight_mapped_or_not(tmp_path: Path, kept: bool) -> None:
    checkpoint = open_gguf(write_gguf(tmp_path / "m.gguf", MATRICES, matrices(), type_of=lambda name: "Q4_1"))
    parameters = tree_flatten(load_model(checkpoint, "float32").parameters())
    assert loaded_bytes(checkpoint, "float32") == sum(array.nbytes for _, array in parameters)


def test_tokenizer_and_sampling_come_along(tmp_path: Path) -> None:
    config = zoo.CASES["llama"].config | {"vocab_size": 300}
    weights = zoo.weights(config, shapes(build(config_from_dict(config))))
    extra = {"general.sampling.temp": 0.5, "general.sampling.top_k": 20, "tokenizer.chat_template": "{{ messages }}"}
    checkpoint = open_gguf(write_gguf(tmp_path / "m.gguf", config, weights, vocabulary=True, metadata=extra))
    tokenizer = checkpoint.load_tokenizer()
    assert tokenizer.decode(tokenizer.encode("the thé")) == "the thé" and 257 in tokenizer.eos_ids
    assert checkpoint.generation_config == {"temperature": 0.5, "top_k": 20, "eos_token_id": 257}
    assert checkpoint.metadata["tokenizer.chat_template"] == "{{ messages }}"


def test_a_file_without_tokenizer_says_so_when_asked(tmp_path: Path) -> None:
    checkpoint = open_gguf(write_case(tmp_path / "m.gguf", "llama"))
    with pytest.raises(GGUFError, match=r"m\.gguf: "):
        checkpoint.load_tokenizer()


@pytest.fixture
def split(tmp_path: Path) -> list[Path]:
    """A llama in three files."""
    write_case(tmp_path / "tiny.gguf", "llama", tensors_per_file=11)
    parts = sorted(tmp_path.glob("tiny-*.gguf"))
    assert [part.name for part in parts] == [f"tiny-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    return parts


def test_g11_any_part_or_the_folder_opens_the_set(split: list[Path]) -> None:
    """Field case G11: split sets handed over by another part than the first, or as a folder."""
    weights = zoo_weights("llama")
    for path in (split[0], split[2], split[0].parent):
        checkpoint = open_gguf(path)
        assert set(checkpoint.tensors) == set(weights)
        assert {tensor.file for tensor in checkpoint.tensors.values()} == set(split)
    for name, value in weights.items():
        np.testing.assert_array_equal(values(checkpoint, name), value)


def test_g11_a_missing_part_is_named(split: list[Path]) -> None:
    split[1].unlink()
    for path in (split[0], split[2], split[0].parent):
        with pytest.raises(FileNotFoundError, match=r"tiny-00002-of-00003\.gguf: part 2 of 3 is missing"):
            open_gguf(path)


def test_g11_parts_joined_or_renamed_are_refused(split: list[Path]) -> None:
    folder = split[0].parent
    joined = folder / "all.gguf"
    joined.write_bytes(b"".join(part.read_bytes() for part in split))
    with pytest.raises(GGUFError, match="a second GGUF file begins"):
        open_gguf(joined)
    joined.unlink()
    renamed = split[1].rename(folder / "second.gguf")
    with pytest.raises(GGUFError, match=r"second\.gguf: is part 2 of 3 by its metadata; name the parts NAME-00002-of"):
        open_gguf(renamed)
    shutil.copy(split[0], split[1])
    with pytest.raises(GGUFError, match="metadata says part 1 of 3, the name says part 2 of 3"):
        open_gguf(split[0])


def test_g11_numbers_that_cannot_be(split: list[Path]) -> None:
    wrong = split[0].rename(split[0].with_name("tiny-00004-of-00003.gguf"))
    with pytest.raises(GGUFError, match="part 4 of 3 cannot be"):
        open_gguf(wrong)


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no \.gguf file"):
        open_gguf(tmp_path)
    one = write_case(tmp_path / "one.gguf", "llama")
    shutil.copy(one, tmp_path / "mmproj-one.gguf")
    assert open_gguf(tmp_path).config["model_type"] == "llama"
    shutil.copy(one, tmp_path / "two.gguf")
    with pytest.raises(GGUFError, match=r"several models; name one of them: one\.gguf, two\.gguf"):
        open_gguf(tmp_path)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small whole file: metadata of every kind, a vocabulary, tensors."""
    sizes = {"num_hidden_layers": 1, "vocab_size": 30, "hidden_size": 4, "intermediate_size": 4, "head_dim": 4}
    config = zoo.CASES["gemma3"].config | sizes | {"num_attention_heads": 1}
    weights = zoo.weights(config, shapes(build(config_from_dict(config))))
    extra = {"some.flag": True, "some.number": 0.5, "some.list": list(range(500)), "general.alignment": 32}
    extra |= {"tokenizer.ggml.tokens": [f"token {index} " * 20 for index in range(30)], "some.text": "é" * 300}
    path = tmp_path_factory.mktemp("fuzz") / "small.gguf"
    return write_gguf(path, config, weights, metadata=extra).read_bytes()


def _try_to_open(path: Path, content: bytes) -> bool:
    """True if it opens. Only GGUFError may come, in time and in four times the file's size (or 32 KiB) of memory."""
    path.write_bytes(content)
    tracemalloc.reset_peak()
    before, start = tracemalloc.get_traced_memory()[0], time.perf_counter()
    try:
        list(open_gguf(path).metadata.items())
        opened = True
    except GGUFError as error:
        opened = False
        assert "\n" not in str(error)
    assert tracemalloc.get_traced_memory()[1] - before <= max(4 * len(content), 1 << 15)
    assert time.perf_counter() - start < 1
    return opened


def _header_length(content: bytes) -> int:
    return content.index(b"blk.0.post_ffw_norm.weight") + 64


@pytest.fixture
def traced(tmp_path: Path):
    tracemalloc.start()
    yield lambda content: _try_to_open(tmp_path / "x.gguf", content)
    tracemalloc.stop()


@pytest.mark.parametrize("seed", range(4))
def test_ten_thousand_mutated_headers(fuzzed: bytes, traced: Callable[[bytes], bool], seed: int) -> None:
    """In four parts, which can run side by side."""
    rng, length, opened = np.random.default_rng(seed), _header_length(fuzzed), 0
    for _ in range(2_500):
        changed = bytearray(fuzzed)
        for at in rng.integers(0, length, rng.integers(1, 6)):
            changed[at] = rng.choice([0, 1, 127, 128, 255, rng.integers(256)])
        opened += traced(bytes(changed))
    assert 0 < opened < 2_500


def test_a_thousand_truncations(fuzzed: bytes, traced: Callable[[bytes], bool]) -> None:
    for length in np.linspace(0, len(fuzzed.rstrip(b"\0")) - 1, 1000).astype(int):
        assert not traced(fuzzed[:length])
