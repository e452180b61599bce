"""Filling models from folders: names, shapes, dtypes, tied heads, towers, quantized layers, memory."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import zoo
import zoo_model
from mlx.utils import tree_flatten
from raw_safetensors import model_folder, write_index
from safetensors.numpy import save_file

from umlm.models import Decoder, build, config_from_dict
from umlm.quant.packed import PackedEmbedding, PackedLinear
from umlm.weights.checkpoint import Checkpoint
from umlm.weights.folder import open_checkpoint
from umlm.weights.load import fill, load_model, loaded_bytes

CASES = ["llama", "llama_tied", "llama_biases", "qwen2", "qwen3", "gemma3", "phi3"]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
UP = "model.layers.0.mlp.up_proj.weight"


def tensors_of(name: str) -> dict[str, np.ndarray]:
    case = zoo.CASES[name]
    return zoo.weights(case.config, zoo.golden(name).parameters, case.seed)


def folder_of(folder: Path, tensors: Mapping[str, np.ndarray], name: str = "llama", **keys: Any) -> Path:
    return model_folder(folder, {**zoo.CASES[name].config, **keys}, {"model.safetensors": tensors})


def loaded(folder: Path, **options: Any) -> Decoder:
    return load_model(open_checkpoint(folder), **options)


def assert_golden(model: Decoder, name: str) -> None:
    golden = zoo.golden(name)
    found = zoo_model.whole(model, golden.tokens)[golden.positions]
    assert np.abs(found - golden.logits).max() <= 1e-4 * np.ptp(golden.logits)


@pytest.mark.parametrize("name", CASES)
def test_loaded_model_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    assert_golden(loaded(folder_of(tmp_path, tensors_of(name), name)), name)


def test_two_shards_and_an_index(tmp_path: Path) -> None:
    """The second shard missing is said before anything is built (W07)."""
    tensors = tensors_of("llama")
    names = {name: f"model-{1 + (number % 2):05}-of-00002.safetensors" for number, name in enumerate(tensors)}
    shards = {file: {name: tensors[name] for name in names if names[name] == file} for file in set(names.values())}
    write_index(model_folder(tmp_path, zoo.CASES["llama"].config, shards), names)
    assert_golden(loaded(tmp_path), "llama")
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="model-00002-of-00002"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("stored", [mx.float16, mx.bfloat16, mx.float32])
@pytest.mark.parametrize("dtype", ["auto", "float32", "float16", "bfloat16"])
def test_dtypes(stored: mx.Dtype, dtype: str, tmp_path: Path) -> None:
    """Any stored dtype becomes the one asked for; auto is float32 on a CPU and the stored dtype on a GPU."""
    folder = folder_of(tmp_path, {})
    arrays = {name: mx.array(value).astype(stored) for name, value in tensors_of("llama").items()}
    mx.save_safetensors(str(folder / "model.safetensors"), arrays)
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    wanted = (mx.float32 if on_cpu else stored) if dtype == "auto" else getattr(mx, dtype)
    for name, value in tree_flatten(loaded(folder, dtype=dtype).parameters()):
        assert value.dtype == wanted
        assert mx.array_equal(value, arrays[name].astype(wanted))


def test_unknown_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dtype 'int8' is unknown; known: auto, float32"):
        loaded(folder_of(tmp_path, tensors_of("llama")), dtype="int8")


def test_missing_extra_and_misshapen_tensors_are_one_line_each(tmp_path: Path) -> None:
    """All at once, with the file, the tensor and both shapes."""
    tensors = tensors_of("llama")
    del tensors["model.norm.weight"]
    tensors[UP] = tensors[UP][:, :-1].copy()
    tensors["model.layers.0.mlp.up_proj.bias"] = np.zeros(80, np.float32)
    with pytest.raises(ValueError, match="up_proj") as caught:
        loaded(folder_of(tmp_path, tensors))
    file = tmp_path / "model.safetensors"
    assert sorted(str(caught.value).splitlines()) == sorted(
        [
            f"{tmp_path}: tensor 'model.norm.weight' is missing, the model needs it as [48]",
            f"{file}: tensor '{UP}' [80, 47] does not fit, the model needs [80, 48]",
            f"{file}: tensor 'model.layers.0.mlp.up_proj.bias' [80] has no place in the model",
        ]
    )


def test_many_problems_are_counted(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is missing.*\n\.\.\. and 22 more$") as caught:
        loaded(folder_of(tmp_path, {}))
    assert len(str(caught.value).splitlines()) == 9


def test_bias_that_the_config_promises_is_missed_by_name(tmp_path: Path) -> None:
    """F17: attention_bias true, no biases in the file."""
    with pytest.raises(ValueError, match=r"'model\.layers\.0\.self_attn\.q_proj\.bias' is missing"):
        loaded(folder_of(tmp_path, tensors_of("llama"), attention_bias=True))


def test_integers_in_place_of_floats_are_refused(tmp_path: Path) -> None:
    tensors = tensors_of("llama")
    tensors[UP] = tensors[UP].astype(np.int8)
    with pytest.raises(ValueError, match="has dtype I8, the model needs a float"):
        loaded(folder_of(tmp_path, tensors))


def test_rotary_buffers_are_ignored(tmp_path: Path) -> None:
    tensors = tensors_of("llama")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(6, np.float32)
    assert_golden(loaded(folder_of(tmp_path, tensors)), "llama")


@pytest.mark.parametrize("same", [True, False])
def test_head_of_a_tied_model_is_dropped(same: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """W14: tied config, lm_head.weight in the file; a warning where it differs."""
    tensors = tensors_of("llama_tied")
    tensors[HEAD] = tensors[EMBEDDING] + (0 if same else 1)
    with caplog.at_level(logging.WARNING):
        assert_golden(loaded(folder_of(tmp_path, tensors, "llama_tied")), "llama_tied")
    assert ["differs from the embedding" in record.getMessage() for record in caplog.records] == (
        [] if same else [True]
    )


def test_tied_by_the_nested_config_only(tmp_path: Path) -> None:
    """W15 (a): tie_word_embeddings inside text_config alone."""
    config = dict(zoo.CASES["llama_tied"].config)
    folder = model_folder(tmp_path, {"text_config": config}, {"model.safetensors": tensors_of("llama_tied")})
    assert_golden(loaded(folder), "llama_tied")


def test_untied_model_without_a_head_is_refused_with_the_hint(tmp_path: Path) -> None:
    """W15 (b): never a random head."""
    tensors = tensors_of("llama")
    del tensors[HEAD]
    with pytest.raises(ValueError, match=r"'lm_head\.weight' is missing.*set tie_word_embeddings to true"):
        loaded(folder_of(tmp_path, tensors))


def multimodal(folder: Path, prefixes: tuple[str, str], tower_layers: int) -> Path:
    tensors = {}
    for name, value in tensors_of("llama").items():
        model, head = prefixes
        new = head + name if name == HEAD else model + name.removeprefix("model.")
        tensors[new] = value
    for layer in range(tower_layers):
        tensors[f"vision_tower.encoder.layers.{layer}.mlp.fc1.weight"] = np.zeros((2, 2), np.float32)
    config = {"text_config": dict(zoo.CASES["llama"].config), "vision_config": {"num_hidden_layers": 4}}
    return model_folder(folder, config, {"model.safetensors": tensors})


@pytest.mark.parametrize(
    "prefixes", [("language_model.model.", "language_model."), ("model.language_model.", ""), ("model.", "")]
)
@pytest.mark.parametrize("layers", [0, 4])
def test_multimodal_checkpoint_loads_as_text_model_with_one_line(
    prefixes: tuple[str, str], layers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F15: text_config, with the vision tower's tensors or without any."""
    with caplog.at_level(logging.WARNING):
        assert_golden(loaded(multimodal(tmp_path, prefixes, layers)), "llama")
    assert len(caplog.records) == 1
    assert ("4 tensors" if layers else "loaded as a text model") in caplog.records[0].getMessage()


def test_half_a_vision_tower_fails(tmp_path: Path) -> None:
    """F15: fewer layers than vision_config says: the download is not whole."""
    with pytest.raises(ValueError, match="the vision tower has 2 of 4 layers"):
        loaded(multimodal(tmp_path, ("model.language_model.", ""), 2))


def test_base_model_names_get_their_prefix(tmp_path: Path) -> None:
    """Embedding models are published without the leading `model.`."""
    tensors = {name.removeprefix("model."): value for name, value in tensors_of("llama").items()}
    assert_golden(loaded(folder_of(tmp_path, tensors)), "llama")


SIZES = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 128}  # sizes that every group divides


def quantized_folder(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], table: Mapping[str, Any]
) -> dict[str, mx.array]:
    """Write an MLX repository; the float tensors that its packed ones stand for."""
    default = {"group_size": 32, "bits": 4, "mode": "affine"}
    files: dict[str, mx.array] = {}
    values: dict[str, mx.array] = {}
    for key, value in tensors.items():
        path = key.removesuffix(".weight")
        setting = table.get(path, default)
        if value.ndim != 2 or setting is False:
            files[key] = values[key] = mx.array(value)
            continue
        parts = mx.quantize(mx.array(value), **setting)
        files |= {f"{path}.{part}": array for part, array in zip(("weight", "scales", "biases"), parts, strict=False)}
        values[key] = mx.dequantize(*parts, **setting).astype(mx.float32)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config, "quantization": {**default, **table}}))
    mx.save_safetensors(str(folder / "model.safetensors"), files, {"format": "mlx"})
    return values


def quantizable(**keys: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A llama config with sizes that can be quantized, and its float weights."""
    config = {**zoo.CASES["llama"].config, **SIZES, **keys}
    return config, zoo.weights(config, zoo_model.shapes(build(config_from_dict(config))))


def test_quantized_repository_equals_its_dequantized_self(tmp_path: Path) -> None:
    """Q12: mixed formats per layer; logits as those of the float model with the dequantized weights."""
    mixed = {
        "model.layers.0.mlp.down_proj": False,
        "model.layers.0.self_attn.v_proj": {"group_size": 16, "bits": 4, "mode": "nvfp4"},
        "model.layers.1.mlp.up_proj": {"group_size": 32, "bits": 8, "mode": "mxfp8"},
        "model.layers.2.mlp.up_proj": {"group_size": 64, "bits": 3, "mode": "affine"},
        "lm_head": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    }
    config, tensors = quantizable(attention_bias=True)
    values = quantized_folder(tmp_path, config, tensors, mixed)
    model = loaded(tmp_path)
    assert isinstance(model.model.embed_tokens, PackedEmbedding)
    assert isinstance(model.model.layers[0].self_attn.q_proj, PackedLinear)
    assert not isinstance(model.model.layers[0].mlp.down_proj, PackedLinear)
    plain = build(config_from_dict(config))
    plain.load_weights(list(values.items()))
    tokens = np.arange(24, dtype=np.int32) * 5 % 128
    np.testing.assert_allclose(zoo_model.whole(model, tokens), zoo_model.whole(plain, tokens), atol=2e-4)


@pytest.mark.parametrize("same", [True, False])
def test_quantized_head_of_a_tied_model_is_dropped(
    same: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """W14, for quantized files: lm_head.scales and biases too."""
    config, tensors = quantizable(tie_word_embeddings=True)
    quantized_folder(tmp_path, config, {**tensors, HEAD: tensors[EMBEDDING] * (1 if same else 2)}, {})
    with caplog.at_level(logging.WARNING):
        model = loaded(tmp_path)
    assert "lm_head" not in model
    assert len(caplog.records) == (0 if same else 1)


def test_packed_norm_is_refused_by_path(tmp_path: Path) -> None:
    """Q05: a quantized tensor where the module cannot be quantized."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = mx.zeros((8, 64))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = Scale()

    parts = mx.quantize(mx.ones((8, 64)))
    files = {f"router.{part}": array for part, array in zip(("weight", "scales", "biases"), parts, strict=True)}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), files)
    (tmp_path / "config.json").write_text('{"quantization": {"bits": 4, "group_size": 64}}')
    with pytest.raises(ValueError, match=r"'router\.weight' \[8, 64\] is affine .* a Scale cannot be quantized"):
        fill(Model(), open_checkpoint(tmp_path))


def test_loaded_in_one_thread_and_used_in_another(tmp_path: Path) -> None:
    """MLX's streams belong to threads: no array may be left lazy. Float and packed layers."""
    config, tensors = quantizable()
    quantized_folder(tmp_path, config, tensors, {HEAD.removesuffix(".weight"): False})
    with ThreadPoolExecutor(1) as pool:
        model = pool.submit(loaded, tmp_path).result()
    here = zoo_model.whole(model, zoo.CASES["llama"].tokens % 128)
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(zoo_model.whole, model, zoo.CASES["llama"].tokens % 128).result()
    np.testing.assert_array_equal(here, there)


class Wide(nn.Module):
    """A model of 16 equal float matrices, 4 MB each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(1024, 1024, bias=False) for _ in range(16)]


def wide_checkpoint(folder: Path) -> Checkpoint:
    arrays = {f"layers.{i}.weight": mx.full((1024, 1024), i, mx.bfloat16) for i in range(16)}
    mx.save_safetensors(str(folder / "model.safetensors"), arrays)
    (folder / "config.json").write_text("{}")
    return open_checkpoint(folder)


def test_peak_memory_is_the_weights_and_one_tensor(tmp_path: Path) -> None:
    """Tensors are cast one at a time: 64 MB of float32 weights, at most a stored and a cast one on top."""
    checkpoint, model = wide_checkpoint(tmp_path), Wide()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    fill(model, checkpoint, "float32")
    assert mx.get_peak_memory() - before <= 64 * 2**20 + 6 * 2**20 + 2**16
    assert model.layers[15].weight[0, 0].item() == 15


def test_progress_counts_the_stored_bytes(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    fill(Wide(), wide_checkpoint(tmp_path), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(2**21 * number, 2**25) for number in range(1, 17)]


def test_single_file_needs_a_config_beside_it(tmp_path: Path) -> None:
    save_file(tensors_of("llama"), tmp_path / "alone.safetensors")
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "config.json"))):
        open_checkpoint(tmp_path / "alone.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(zoo.CASES["llama"].config))
    assert_golden(load_model(open_checkpoint(tmp_path / "alone.safetensors")), "llama")


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff"])
def test_broken_config_is_named(text: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, tensors_of("llama"))
    (folder / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"config\.json: (not valid JSON|a JSON object is needed)"):
        open_checkpoint(folder)


def test_path_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ValueError, match=r"notes\.txt: not a model"):
        open_checkpoint(tmp_path / "notes.txt")
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        open_checkpoint(tmp_path / "absent")


def test_loaded_bytes_are_those_of_the_parameters(tmp_path: Path) -> None:
    """What the budget counts before loading is what the parameters take afterwards, also where dtypes are cast."""
    checkpoint = open_checkpoint(folder_of(tmp_path, tensors_of("llama")))
    for dtype in ("float32", "bfloat16"):
        parameters = tree_flatten(load_model(checkpoint, dtype).parameters())
        assert loaded_bytes(checkpoint, dtype) == sum(array.nbytes for _, array in parameters)
