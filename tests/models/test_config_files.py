"""Configs against the tensors beside them: multimodal files, ties, biases. The files are read as users' are."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zoo
from safetensors.numpy import save_file
from zoo_model import shapes, whole, write_folder

from umlm.models import Decoder, build, config_from_dict
from umlm.weights.folder import open_checkpoint
from umlm.weights.load import load_model

BOUND = 1e-5
WRAPPER = "gemma3_wrapper"
TOWER = {"vision_tower.vision_model.embeddings.position_embedding.weight": (16, 16)}


def load_folder(folder: Path) -> Decoder:
    return load_model(open_checkpoint(folder), dtype="float32")


def assert_golden(name: str, model: Decoder) -> None:
    truth = zoo.golden(name)
    gap = np.abs(whole(model, truth.tokens)[truth.positions] - truth.logits).max() / np.ptp(truth.logits)
    assert gap <= BOUND, f"{name}: logits differ by {gap:.1e} of their range"


def tower_layer(layer: int) -> dict[str, tuple[int, ...]]:
    prefix = f"vision_tower.vision_model.encoder.layers.{layer}"
    return {f"{prefix}.mlp.fc1.weight": (16, 16), f"{prefix}.mlp.fc1.bias": (16,)}


# F15: a multimodal config over the language model's weights alone; a tower that is there in part.


@pytest.mark.parametrize("prefix", ["", "language_model."])
def test_text_weights_under_a_multimodal_config(prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Old files put `language_model.` before every name. One logged line says that the model is text only."""
    write_folder(tmp_path, zoo.CASES[WRAPPER].config, zoo.golden(WRAPPER).parameters, prefix)
    with caplog.at_level(logging.WARNING, "umlm"):
        assert_golden(WRAPPER, load_folder(tmp_path))
    assert len(caplog.records) == 1
    assert "text" in caplog.records[0].getMessage()


def test_names_as_new_multimodal_files_have_them(tmp_path: Path) -> None:
    """`model.language_model.layers...`, and the vision tower whole: it is left out."""
    names = {
        name.replace("model.", "model.language_model.", 1): s for name, s in zoo.golden(WRAPPER).parameters.items()
    }
    write_folder(tmp_path, zoo.CASES[WRAPPER].config, zoo.golden(WRAPPER).parameters)
    rewrite(tmp_path, names, {**TOWER, **tower_layer(0)})
    assert_golden(WRAPPER, load_folder(tmp_path))


def test_half_a_vision_tower_is_an_error(tmp_path: Path) -> None:
    config = dict(zoo.CASES[WRAPPER].config)
    config["vision_config"] = {**config["vision_config"], "num_hidden_layers": 2}
    write_folder(tmp_path, config, {**zoo.golden(WRAPPER).parameters, **TOWER, **tower_layer(0)})
    with pytest.raises(ValueError, match=r"vision tower.*1 of 2"):
        load_folder(tmp_path)


def rewrite(folder: Path, names: Mapping[str, Any], tower: Mapping[str, tuple[int, ...]]) -> None:
    """Store the folder's tensors, in the order of the golden parameters, under other names and with a tower."""
    golden = zoo.golden(WRAPPER).parameters
    values = zoo.weights(zoo.CASES[WRAPPER].config, golden)
    renamed = dict(zip(names, values.values(), strict=True))
    save_file({**renamed, **zoo.weights({}, tower)}, folder / "model.safetensors")


# F16: what only the nested config says holds for the files too.


def test_nested_tie_decides_whether_a_head_is_needed(tmp_path: Path) -> None:
    """Untied inside, tied outside: the nested value wins, and the file must hold a head."""
    config = dict(zoo.CASES[WRAPPER].config) | {"tie_word_embeddings": True}
    config["text_config"] = {**config["text_config"], "tie_word_embeddings": False}
    with pytest.raises(ValueError, match=r"lm_head\.weight.*missing"):
        load_folder(write_folder(tmp_path / "without", config, zoo.golden(WRAPPER).parameters))
    parameters = shapes(build(config_from_dict(config)))
    assert "lm_head.weight" in parameters
    model = load_folder(write_folder(tmp_path / "with", config, parameters))
    assert shapes(model) == parameters


# F17: biases that the config promises.


def test_biases_from_a_file(tmp_path: Path) -> None:
    name = "llama_biases"
    assert_golden(name, load_folder(write_folder(tmp_path, zoo.CASES[name].config, zoo.golden(name).parameters)))


@pytest.mark.parametrize("missing", ["self_attn.q_proj.bias", "mlp.down_proj.bias"])
def test_a_missing_bias_is_named(missing: str, tmp_path: Path) -> None:
    parameters = {key: s for key, s in zoo.golden("llama_biases").parameters.items() if not key.endswith(missing)}
    write_folder(tmp_path, zoo.CASES["llama_biases"].config, parameters)
    with pytest.raises(ValueError, match=rf"model\.layers\.0\.{missing}"):
        load_folder(tmp_path)


def test_a_bias_without_a_place_is_named(tmp_path: Path) -> None:
    """Loaded as a type without biases they would be lost in silence."""
    config = {**zoo.CASES["llama_biases"].config, "model_type": "mistral", "attention_bias": False, "mlp_bias": False}
    write_folder(tmp_path, config, zoo.golden("llama_biases").parameters)
    with pytest.raises(ValueError, match=r"model\.layers\.0\.self_attn\.\w_proj\.bias"):
        load_folder(tmp_path)
