"""Under a limit of 1.5 times the model's size every request of a flood is answered or refused, within the forecast."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_chat

from umlm.models import build, config_from_dict

SCRIPT = Path(__file__).with_name("flood.py")
CONFIG = {
    "model_type": "llama",
    "vocab_size": 300_000,
    "hidden_size": 512,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A model of 629 MB whose weights are zeros: a file with a hole, which takes no room on disk."""
    tiny_chat.write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_zeros(tmp_path / "model.safetensors")
    yield tmp_path
    (tmp_path / "model.safetensors").unlink()


def write_zeros(file: Path) -> None:
    """A safetensors file of all parameters of CONFIG in float32."""
    from mlx.utils import tree_flatten

    header: dict[str, Any] = {}
    end = 0
    for name, value in tree_flatten(build(config_from_dict(CONFIG)).parameters()):
        start, end = end, end + value.nbytes
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + end)


def test_a_flood_ends_well(folder: Path) -> None:
    limit = (folder / "model.safetensors").stat().st_size * 3 // 2
    done = subprocess.run([sys.executable, SCRIPT, folder, str(limit)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["ends"] == {"refused": 29, "length": 171}
    assert found["again"] == 2
    forecast = found["before"] + found["total"]
    assert found["peak"] <= forecast <= limit, found
    assert found["peak"] >= 0.8 * forecast, found  # the rest is the reserve
