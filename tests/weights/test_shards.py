"""Which files of a folder are read: the index, the glob rule, and names that lead out of the folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from raw_safetensors import model_folder, write_index
from safetensors.numpy import save_file

from umlm.weights.safetensors import read_tensor
from umlm.weights.shards import open_shards

A, B = {"a": np.full(3, 1.0, np.float32)}, {"b": np.full(3, 2.0, np.float32)}
STRAY = {name: np.full(3, 9.0, np.float32) for name in ("a", "b")}
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def indexed(folder: Path) -> Path:
    model_folder(folder, {}, {FIRST: A, SECOND: B})
    write_index(folder, {"a": FIRST, "b": SECOND})
    return folder


def values(folder: Path) -> dict[str, float]:
    located = open_shards(folder).tensors
    return {name: read_tensor(where.file, where.entry)[0].item() for name, where in sorted(located.items())}


def test_only_files_that_the_index_lists_are_read(tmp_path: Path) -> None:
    """W08: stray copies beside the indexed shards hold other values."""
    folder = indexed(tmp_path)
    for name in ("model.safetensors", "consolidated.safetensors", "adapters.safetensors"):
        save_file(STRAY, folder / name)
    assert values(folder) == {"a": 1.0, "b": 2.0}


def test_missing_shard_is_named(tmp_path: Path) -> None:
    """W07: the index lists a shard that is not there."""
    folder = indexed(tmp_path)
    (folder / SECOND).unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(str(folder / SECOND))):
        open_shards(folder)


def test_missing_shard_is_named_without_an_index(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, {}, {SECOND: B})
    with pytest.raises(FileNotFoundError, match=re.escape(FIRST)):
        open_shards(folder)


def test_tensor_that_the_index_puts_into_the_wrong_file_is_named(tmp_path: Path) -> None:
    folder = indexed(tmp_path)
    write_index(folder, {"a": FIRST, "b": FIRST})
    with pytest.raises(ValueError, match=f"{FIRST}: tensor 'b' is not in it"):
        open_shards(folder)


def test_tensor_that_no_index_lists_is_read_too(tmp_path: Path) -> None:
    """Converters have left scales out of the index."""
    folder = indexed(tmp_path)
    save_file({**B, "b.scales": B["b"]}, folder / SECOND)
    assert values(folder) == {"a": 1.0, "b": 2.0, "b.scales": 2.0}


@pytest.mark.parametrize("weight_map", [None, [], {"a": 1}])
def test_index_of_another_shape_is_refused(weight_map: object, tmp_path: Path) -> None:
    folder = indexed(tmp_path)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ValueError, match="weight_map must map"):
        open_shards(folder)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"model.safetensors": A, "adapters.safetensors": STRAY, "consolidated.safetensors": STRAY}, {"a": 1.0}),
        ({FIRST: A, SECOND: B, "consolidated.safetensors": STRAY}, {"a": 1.0, "b": 2.0}),
        ({"weights.00.safetensors": A, "weights.01.safetensors": B}, {"a": 1.0, "b": 2.0}),
        ({"anything.safetensors": A, "adapter_model.safetensors": STRAY}, {"a": 1.0}),
    ],
)
def test_glob_rule(files: dict[str, dict[str, np.ndarray]], expected: dict[str, float], tmp_path: Path) -> None:
    """W08: without an index, model*, else weights*, else the only file that is no adapter."""
    assert values(model_folder(tmp_path, {}, files)) == expected


def test_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    """W08: no index, and a second copy among the files of the glob rule."""
    folder = model_folder(tmp_path, {}, {"model.safetensors": A, FIRST: A, SECOND: B})
    with pytest.raises(ValueError, match=f"tensor 'a' is in {FIRST} too"):
        open_shards(folder)


def test_several_files_of_no_known_name_are_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, {}, {"one.safetensors": A, "two.safetensors": B})
    with pytest.raises(ValueError, match=r"one\.safetensors, two\.safetensors"):
        open_shards(folder)


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/x.safetensors", "C:\\x", "C:x", "a/../../x", "", "a\\b"])
def test_index_cannot_lead_out_of_the_folder(name: str, tmp_path: Path) -> None:
    """W10: parents, absolute paths and drive letters in weight_map, though such a file exists."""
    folder = indexed(tmp_path / "model")
    save_file(STRAY, tmp_path / "x.safetensors")
    write_index(folder, {"a": name})
    with pytest.raises(ValueError, match="not a plain name inside the folder"):
        open_shards(folder)


def test_hub_cache_of_symbolic_links_works(tmp_path: Path) -> None:
    """W10: snapshots/<commit>/file -> ../../blobs/<hash>, as the Hugging Face cache has it."""
    snapshot, blobs = tmp_path / "snapshots" / "0a1b", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    for file in indexed(blobs).iterdir():
        (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
    assert values(snapshot) == {"a": 1.0, "b": 2.0}


@pytest.mark.parametrize(("file", "words"), [("pytorch_model.bin", "convert it to safetensors"), ("x.md", "download")])
def test_folder_without_weights_says_what_to_do(file: str, words: str, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=words):
        open_shards(tmp_path)
