"""MLX-quantized folders: the quantization map against the tensors, and the values against MLX's own."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from umlm.kernels.packed import Format, Packed
from umlm.weights.checkpoint import Checkpoint
from umlm.weights.folder import open_checkpoint

LAYER = "model.layers.0.mlp.up_proj"
FORMATS = [("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
FORMATS += [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]


def matrix(rows: int = 8, columns: int = 256, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32))


def quantized(name: str, mode: str, bits: int, group: int, seed: int = 0) -> dict[str, mx.array]:
    parts = mx.quantize(matrix(seed=seed), group, bits, mode)
    return {f"{name}.{part}": array for part, array in zip(("weight", "scales", "biases"), parts, strict=False)}


def folder_of(folder: Path, quantization: Any, tensors: Mapping[str, mx.array], **keys: Any) -> Path:
    folder.mkdir(exist_ok=True)
    config = {"quantization": quantization, **keys}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tensors), {"format": "mlx"})
    return folder


def stored(checkpoint: Checkpoint, name: str = LAYER) -> tuple[Format, np.ndarray]:
    """The format, and the values by MLX's own dequantization."""
    tensor = checkpoint.tensors[f"{name}.weight"]
    packed = tensor.read()
    assert isinstance(packed, Packed) and packed.format == tensor.format and packed.shape == tensor.shape
    assert packed.nbytes == tensor.nbytes
    form = packed.format
    values = mx.dequantize(packed.weight, packed.scales, packed.biases, form.group_size, form.bits, form.mode)
    assert values.shape == tensor.shape
    return form, np.array(values.astype(mx.float32))


def expected(mode: str, bits: int, group: int, seed: int = 0) -> np.ndarray:
    parts = mx.quantize(matrix(seed=seed), group, bits, mode)
    return np.array(mx.dequantize(*parts, group_size=group, bits=bits, mode=mode).astype(mx.float32))


@pytest.mark.parametrize(("mode", "bits", "group"), FORMATS)
@pytest.mark.parametrize("named", [True, False])
def test_every_layout_reads(mode: str, bits: int, group: int, named: bool, tmp_path: Path) -> None:
    """Q08, Q12: all modes, bits and groups, also where the map names no mode."""
    table = {"bits": bits, "group_size": group} | ({"mode": mode} if named else {})
    checkpoint = open_checkpoint(folder_of(tmp_path, table, quantized(LAYER, mode, bits, group)))
    assert list(checkpoint.tensors) == [f"{LAYER}.weight"]
    form, values = stored(checkpoint)
    assert form == Format(mode, bits, group)
    np.testing.assert_array_equal(values, expected(mode, bits, group))


def test_overrides_by_stored_and_by_text_names(tmp_path: Path) -> None:
    """Q03: keys with the checkpoint's prefix, modes that mix, true and false, both maps present."""
    prefix = "model.language_model.layers.0."
    tensors = quantized(prefix + "a", "affine", 6, 128) | quantized(prefix + "b", "affine", 4, 128)
    tensors |= quantized("model.language_model.layers.0.c", "mxfp4", 4, 32)
    tensors |= {prefix + "router.weight": matrix(), "lm_head.weight": matrix()}
    table = {"bits": 4, "group_size": 128, prefix + "a": {"bits": 6}, prefix + "b": True, prefix + "router": False}
    table |= {"model.layers.0.c": {"mode": "mxfp4"}, "lm_head": False}
    folder = folder_of(tmp_path, table, tensors, quantization_config={"bits": 8, "group_size": 32}, text_config={})
    checkpoint = open_checkpoint(folder)
    forms = {name: stored(checkpoint, f"model.layers.0.{name}")[0] for name in "abc"}
    assert forms == {"a": Format("affine", 6, 128), "b": Format("affine", 4, 128), "c": Format("mxfp4", 4, 32)}
    assert checkpoint.tensors["model.layers.0.router.weight"].format == "F32"
    assert checkpoint.tensors["lm_head.weight"].format == "F32"


def test_wide_matrix_with_its_own_bits(tmp_path: Path) -> None:
    """Q03: 5120 columns take 640 words at 4 bits, 960 at 6."""
    name = "model.language_model.layers.0.x"
    parts = mx.quantize(matrix(2, 5120), 128, 6)
    tensors = dict(zip((f"{name}.weight", f"{name}.scales", f"{name}.biases"), parts, strict=True))
    assert parts[0].shape == (2, 960)
    table: dict[str, Any] = {"bits": 4, "group_size": 128}
    with pytest.raises(ValueError, match=r"\[2, 960\] with scales \[2, 40\] is not affine 4-bit group 128"):
        open_checkpoint(folder_of(tmp_path, table, tensors))
    checkpoint = open_checkpoint(folder_of(tmp_path, table | {name: {"bits": 6}}, tensors, text_config={}))
    assert checkpoint.tensors["model.layers.0.x.weight"].shape == (2, 5120)


def test_map_in_quantization_config_alone(tmp_path: Path) -> None:
    table = {"bits": 4, "group_size": 64}
    folder = folder_of(tmp_path, ..., quantized(LAYER, "affine", 4, 64), quantization_config=table)
    assert stored(open_checkpoint(folder))[0] == Format("affine", 4, 64)


def test_overrides_that_meet_nothing_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Q03, Q05: an override for a float tensor (a router), and one for a path that does not exist."""
    table = {"bits": 4, "group_size": 64, "model.layers.0.gate": {"bits": 8}, "model.layers.9.gate": {"bits": 8}}
    tensors = quantized(LAYER, "affine", 4, 64) | {"model.layers.0.gate.weight": matrix()}
    with caplog.at_level(logging.WARNING):
        open_checkpoint(folder_of(tmp_path, table, tensors))
    messages = sorted(record.getMessage() for record in caplog.records)
    assert len(messages) == 2
    assert "'model.layers.0.gate', but its tensors are stored in float" in messages[0]
    assert "'model.layers.9.gate', but no such tensor is in the files" in messages[1]


REFUSED: dict[str, tuple[Any, str]] = {
    "bits that affine has not": ({"bits": 7, "group_size": 64}, "bits 7"),
    "group that affine has not": ({"bits": 4, "group_size": 16}, "group_size 16"),
    "bits of another mode": ({"bits": 8, "group_size": 32, "mode": "mxfp4"}, "mxfp4 has bits 4"),
    "group of another mode": ({"bits": 4, "group_size": 64, "mode": "nvfp4"}, "nvfp4 has bits 4 and group_size 16"),
    "unknown mode": ({"bits": 4, "group_size": 64, "mode": "nf4"}, "mode 'nf4'"),
    "a mode without biases": ({"bits": 4, "group_size": 32, "mode": "mxfp4"}, "scales"),
    "other bits than packed": ({"bits": 8, "group_size": 64}, "is not affine 8-bit"),
    "other group than packed": ({"bits": 4, "group_size": 128}, "its scales would be"),
    "false, yet packed": ({"bits": 4, "group_size": 64, LAYER: False}, "says false"),
    "a list as mode": ({"bits": 4, "group_size": 64, "mode": ["affine"]}, r"mode \['affine'\]"),
    "a text as bits": ({"bits": "4", "group_size": 64}, "bits '4'"),
    "a fraction as bits": ({"bits": 4.0, "group_size": 64}, "bits 4.0"),
    "a list as group": ({"bits": 4, "group_size": [64]}, r"group_size \[64\]"),
    "no map": (..., "no 'quantization'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_map_that_does_not_fit_is_refused(name: str, tmp_path: Path) -> None:
    """Q08: wrong bits or group for a mode, and maps that the packed tensors contradict."""
    table, words = REFUSED[name]
    folder = folder_of(tmp_path, table, quantized(LAYER, "affine", 4, 64))
    with pytest.raises(ValueError, match=words) as caught:
        open_checkpoint(folder)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_affine_without_biases_is_refused(tmp_path: Path) -> None:
    tensors = quantized(LAYER, "affine", 4, 64)
    del tensors[f"{LAYER}.biases"]
    with pytest.raises(ValueError, match=r"needs biases \[8, 4\], found none"):
        open_checkpoint(folder_of(tmp_path, {"bits": 4, "group_size": 64}, tensors))


@pytest.mark.parametrize("method", ["awq", "gptq", "aqlm", "compressed-tensors", "bitsandbytes"])
@pytest.mark.parametrize("nested", [True, False])
def test_other_quantizers_are_refused_by_name(method: str, nested: bool, tmp_path: Path) -> None:
    """W11, W13: no checkpoint of another scheme is read as something that it is not."""
    keys = {"quantization_config": {"quant_method": method, "bits": 4, "group_size": 128}}
    folder = folder_of(tmp_path, ..., {"a.qweight": mx.zeros((4, 4))}, **({"text_config": keys} if nested else keys))
    with pytest.raises(ValueError, match=f"quant_method '{method}'"):
        open_checkpoint(folder)
