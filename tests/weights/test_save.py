"""Saved folders: read back by the reference library and by us, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
import pytest
import zoo
import zoo_model
from gguf import GGMLQuantizationType
from mlx.utils import tree_flatten
from safetensors import safe_open

from umlm.kernels import dequantize
from umlm.kernels.packed import Format, Packed
from umlm.models import Decoder, build, config_from_dict
from umlm.quant.packed import replace
from umlm.weights.folder import open_checkpoint
from umlm.weights.load import load_model
from umlm.weights.save import save_model, save_tensors

CONFIG = {**zoo.CASES["llama"].config, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 128}


def model_of(name: str = "llama") -> Decoder:
    return zoo_model.load(zoo.CASES[name].config, zoo.golden(name).parameters)


def index_of(folder: Path) -> dict[str, dict[str, str]]:
    return json.loads((folder / "model.safetensors.index.json").read_text())


def test_files_are_what_hugging_face_reads(tmp_path: Path) -> None:
    """W16: format in the metadata, every tensor once in the index, Hugging Face's names, total_size."""
    model = model_of()
    save_model(model, zoo.CASES["llama"].config, tmp_path / "out", shard_bytes=30_000)
    index, seen = index_of(tmp_path / "out"), {}
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    for file in files:
        with safe_open(tmp_path / "out" / file, "np") as opened:
            assert opened.metadata() == {"format": "pt"}
            for name in opened.keys():  # noqa: SIM118  (no mapping, only keys)
                assert name not in seen and index["weight_map"][name] == file
                seen[name] = opened.get_tensor(name)
    wanted = zoo.weights(zoo.CASES["llama"].config, zoo.golden("llama").parameters)
    assert seen.keys() == wanted.keys() == index["weight_map"].keys()
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in wanted.values())
    for name, value in wanted.items():
        np.testing.assert_array_equal(seen[name], value)


@pytest.mark.parametrize("name", ["llama", "llama_tied", "gemma3_wrapper", "phi3"])
def test_saved_model_loads_as_it_was(name: str, tmp_path: Path) -> None:
    """Multimodal configs are saved as the text model that they hold."""
    model, tokens = model_of(name), zoo.CASES[name].tokens
    save_model(model, zoo.CASES[name].config, tmp_path / "out")
    again = load_model(open_checkpoint(tmp_path / "out"), "float32")
    np.testing.assert_array_equal(zoo_model.whole(again, tokens), zoo_model.whole(model, tokens))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["torch_dtype"] == "float32" and "text_config" not in config


def quantized_model() -> Decoder:
    model = build(config_from_dict(CONFIG))
    values = zoo.weights(CONFIG, zoo_model.shapes(model))
    model.load_weights([(name, mx.array(value)) for name, value in values.items()])
    formats = {"model.layers.0.mlp.up_proj": ("mxfp4", 4, 32), "lm_head": ("affine", 6, 64)}
    formats |= {f"model.layers.{i}.self_attn.q_proj": ("affine", 4, 64) for i in range(3)}
    for path, (mode, bits, group) in formats.items():
        weight = mx.array(values[f"{path}.weight"])
        parts = mx.quantize(weight, group, bits, mode)
        replace(model, path, Packed(Format(mode, bits, group), weight.shape, *parts))
    return model


def test_packed_layers_are_saved_as_an_mlx_repository(tmp_path: Path) -> None:
    """The map is written from the layers themselves; what the source's config said is gone."""
    model = quantized_model()
    save_model(model, {**CONFIG, "quantization": {"bits": 2, "group_size": 32}}, tmp_path / "out")
    table = json.loads((tmp_path / "out" / "config.json").read_text())["quantization"]
    assert {key: table[key] for key in ("bits", "group_size", "mode")} == {
        "bits": 4,
        "group_size": 64,
        "mode": "affine",
    }
    assert table["lm_head"]["bits"] == 6 and table["model.embed_tokens"] is False
    again = load_model(open_checkpoint(tmp_path / "out"), "float32")
    for (name, one), (_, other) in zip(tree_flatten(model.parameters()), tree_flatten(again.parameters()), strict=True):
        assert mx.array_equal(one, other), name


def test_gguf_blocks_that_mlx_can_hold_are_saved_without_loss(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((128, 64)).astype(np.float32)
    blocks = gguf.quantize(values, GGMLQuantizationType.Q5_1)
    model, path = build(config_from_dict(CONFIG)), "model.layers.0.mlp.up_proj"
    replace(model, path, Packed(Format("gguf", 0, 32, "Q5_1"), (128, 64), mx.array(blocks)))
    save_model(model, CONFIG, tmp_path / "out")
    read = open_checkpoint(tmp_path / "out").tensors[f"{path}.weight"].read()
    assert isinstance(read, Packed) and read.format == Format("affine", 5, 32)
    np.testing.assert_array_equal(np.array(dequantize(read)), gguf.dequantize(blocks, GGMLQuantizationType.Q5_1))


def test_gguf_blocks_are_refused_with_the_path(tmp_path: Path) -> None:
    model = build(config_from_dict(CONFIG))
    blocks = mx.zeros((128, 2 * 18), dtype=mx.uint8)
    replace(model, "model.layers.0.mlp.up_proj", Packed(Format("gguf", 0, 32, "IQ4_NL"), (128, 64), blocks))
    with pytest.raises(ValueError, match=r"layers\.0\.mlp\.up_proj holds GGUF IQ4_NL blocks"):
        save_model(model, CONFIG, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_bfloat16_and_companions(tmp_path: Path) -> None:
    """Half precision is kept and said; tokenizer files and licences go along, weights do not."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "LICENSE", "old.safetensors"):
        (source / name).write_text(name)
    model = model_of()
    model.set_dtype(mx.bfloat16)
    save_model(model, zoo.CASES["llama"].config, tmp_path / "out", companions=source)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "LICENSE", "config.json"}
    assert "old.safetensors" not in names
    checkpoint = open_checkpoint(tmp_path / "out")
    assert checkpoint.config["torch_dtype"] == "bfloat16"
    assert {tensor.format for tensor in checkpoint.tensors.values()} == {"BF16"}


def test_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    with pytest.raises(FileExistsError, match="not empty"):
        save_model(model_of(), zoo.CASES["llama"].config, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_failure_leaves_nothing(tmp_path: Path) -> None:
    """A config that JSON cannot hold fails after the weights were written: no folder, no leftovers."""
    with pytest.raises(TypeError):
        save_model(model_of(), {**zoo.CASES["llama"].config, "bad": object()}, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_no_tensors_and_empty_ones_are_saved(tmp_path: Path) -> None:
    """W02: files that the reference library reads."""
    save_tensors({}, tmp_path)
    with safe_open(tmp_path / "model.safetensors", "np") as opened:
        assert list(opened.keys()) == [] and opened.metadata() == {"format": "pt"}
    save_tensors({"scalar": mx.array(2.5), "none": mx.zeros((0, 3))}, tmp_path)
    with safe_open(tmp_path / "model.safetensors", "np") as opened:
        assert opened.get_tensor("scalar").item() == 2.5 and opened.get_tensor("none").shape == (0, 3)
