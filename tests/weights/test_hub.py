"""Names -> paths: local paths first, then Hugging Face through the real client and a hub on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import COMMIT, hub_of

from umlm.weights.cache_folder import cached_models, find_cached, remove_model
from umlm.weights.hub import DEFAULT_MODEL, DEFAULT_ON_HUB, HubName, parse_hub_name, resolve

FLOAT = {
    "config.json": b"{}",
    "README.md": b"---\nlicense: mit\n---\n",
    "model.safetensors": b"0123456789",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "modeling_evil.py": b"raise SystemExit",
    "pytorch_model.bin": b"pickle",
    "original/consolidated.safetensors": b"copy",
    "onnx/model.json": b"copy",
}
GGUF = {"m-Q4_K_M.gguf": b"4", "m-Q8_0.gguf": b"8", "mmproj-Q8_0.gguf": b"p", "x/m-F16-00001-of-00002.gguf": b"1"}
GGUF |= {"x/m-F16-00002-of-00002.gguf": b"2", "one-Q5_0.gguf": b"5", "two-Q5_0.gguf": b"5"}
REPOSITORIES = {"owner/float": FLOAT, "owner/ggufs": GGUF, DEFAULT_ON_HUB: FLOAT}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A hub with these repositories and an empty cache; the paths that it was asked for."""
    monkeypatch.setenv("UMLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("UMLM_PREFER_HUB", raising=False)
    with hub_of(REPOSITORIES) as (endpoint, paths):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        yield paths


def names(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_only_needed_files_are_downloaded(asked: list[str]) -> None:
    """No code, no pickles, no second copies for other programs."""
    folder = resolve("owner/float")
    needed = {"config.json", "README.md", "model.safetensors", "tokenizer.json", "chat_template.jinja"}
    assert names(folder) == needed and folder.name == COMMIT
    assert not any("evil" in path or "original" in path or path.endswith(".bin") for path in asked)


def test_downloaded_once(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Again: no file is fetched; without the network and with download=False the cache serves."""
    folder = resolve("owner/float")
    asked.clear()
    assert resolve("owner/float") == folder
    assert not any("resolve" in path for path in asked)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert resolve("owner/float") == folder == resolve("owner/float", download=False)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("owner/ggufs:Q4_K_M", "m-Q4_K_M.gguf"),
        ("owner/ggufs:q4_k_m", "m-Q4_K_M.gguf"),
        ("owner/ggufs:Q8_0", "m-Q8_0.gguf"),
        ("owner/ggufs/one-Q5_0.gguf", "one-Q5_0.gguf"),
        ("owner/ggufs:F16", "x/m-F16-00001-of-00002.gguf"),
    ],
)
def test_one_gguf_of_a_repository(name: str, file: str, asked: list[str]) -> None:
    """By quantization or by file name; all parts of a split set come, an image encoder is not it."""
    path = resolve(name)
    assert str(path).endswith(f"{COMMIT}/{file}") and path.read_bytes() == GGUF[file]
    if "00001" in file:
        assert path.with_name("m-F16-00002-of-00002.gguf").is_file()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("owner/absent", {}, "no such repository on Hugging Face"),
        ("owner/float", {"revision": "nope"}, "owner/float at revision 'nope': no such revision"),
        ("owner/float", {"download": False}, "owner/float is not downloaded; run `umlm pull owner/float`"),
        ("owner/ggufs", {}, "name a GGUF file in it as owner/ggufs:Q4_K_M"),
        ("owner/ggufs:Q2_K", {}, "no GGUF file that matches"),
        ("owner/ggufs:Q5_0", {}, r"matches several files \(one-Q5_0.gguf, two-Q5_0.gguf\)"),
    ],
)
def test_errors_are_one_line_with_a_remedy(name: str, options: dict[str, object], words: str, asked: list[str]) -> None:
    with pytest.raises((FileNotFoundError, ValueError), match=words) as caught:
        resolve(name, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_hub_that_cannot_be_reached(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OSError, match="owner/float: not in the cache, and Hugging Face cannot be reached"):
        resolve("owner/float")


@pytest.mark.parametrize("how", ["option", "environment"])
def test_default_model_from_the_hub_when_preferred(how: str, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "environment":
        monkeypatch.setenv("UMLM_PREFER_HUB", "1")
    folder = resolve(DEFAULT_MODEL, prefer="hub" if how == "option" else None)
    assert f"models--{DEFAULT_ON_HUB.replace('/', '--')}" in str(folder)


@pytest.mark.parametrize(
    "name", ["", "word", "/absent/x", "./absent", "a/b/c", "~/absent", "a/../b", "m.gguf", "a b/c"]
)
def test_what_is_no_name_is_refused_without_the_network(name: str, asked: list[str]) -> None:
    with pytest.raises(FileNotFoundError, match="no such file or folder; a model is a path"):
        resolve(name)
    assert asked == []


def test_paths_on_disk_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]) -> None:
    (tmp_path / "owner" / "float").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("owner/float") == Path("owner/float")
    assert resolve("~/owner") == tmp_path / "owner"
    assert asked == []


def test_parts_of_a_hub_name() -> None:
    assert parse_hub_name("a/b") == HubName("a/b", None)
    assert parse_hub_name("a/b:IQ4_XS") == HubName("a/b", "*IQ4_XS*.gguf")
    assert parse_hub_name("a/b/c/d.gguf") == HubName("a/b", "c/d.gguf")


def test_cached_repository_is_listed_and_removed(asked: list[str], tmp_path: Path) -> None:
    """Its size counts each blob once; nothing outside of the cache is touched."""
    resolve("owner/float")
    (model,) = cached_models()
    size = sum(len(FLOAT[name]) for name in names(next(model.path.glob("snapshots/*"))))
    assert model.name == "owner/float" and size <= model.nbytes < size + 2000
    assert find_cached("owner/float") == [model] and find_cached("owner") == []
    remove_model(model)
    assert cached_models() == [] and (tmp_path / "cache" / "hub").is_dir()


def test_nothing_outside_of_the_cache_is_removed(asked: list[str], tmp_path: Path) -> None:
    """A path elsewhere is refused; a link in the cache is removed, not what it points at."""
    resolve("owner/float")
    (model,) = cached_models()
    precious = tmp_path / "precious"
    precious.mkdir()
    with pytest.raises(ValueError, match="not inside the cache"):
        remove_model(model._replace(path=precious))
    with pytest.raises(ValueError, match="not inside the cache"):
        remove_model(model._replace(path=model.path / ".." / ".." / ".." / "precious"))
    link = model.path.parent / "models--a--b"
    link.symlink_to(precious)
    remove_model(find_cached("a/b")[0])
    assert precious.is_dir() and not link.is_symlink()
