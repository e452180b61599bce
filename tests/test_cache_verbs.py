"""umlm pull, list, show, rm: what they print, their exit codes, and errors of one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest
import zoo
import zoo_model

from umlm import list as list_verb
from umlm import pull, rm, show
from umlm.weights.cache_folder import cache_folder
from umlm.weights.describe import kv_bytes_per_token
from umlm.weights.save import save_model

FILE = "pypi/tiny/1.0/m.gguf"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with one model of 2 MB in it."""
    root = tmp_path / "cache"
    (root / FILE).parent.mkdir(parents=True)
    (root / FILE).write_bytes(bytes(2_000_000))
    monkeypatch.setenv("UMLM_CACHE", str(root))
    return root


@pytest.mark.parametrize("verb", ["pull", "list", "show", "rm"])
def test_help_and_misuse(verb: str) -> None:
    """As a module of its own: 0 for --help, 2 for an unknown option."""
    module = [sys.executable, "-m", f"umlm.{verb}"]
    shown = subprocess.run([*module, "--help"], capture_output=True, text=True, check=False)
    assert shown.returncode == 0 and shown.stdout.startswith(f"usage: umlm {verb}")
    misused = subprocess.run([*module, "--bogus"], capture_output=True, text=True, check=False)
    assert misused.returncode == 2 and "Traceback" not in misused.stderr


def test_list(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list_verb.main([]) == 0
    assert "pypi:tiny==1.0" in (text := capsys.readouterr().out) and "2.0" in text
    assert list_verb.main(["--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["bytes"], row["path"]) == ("pypi:tiny==1.0", 2_000_000, str((cache / FILE).parent))


def test_list_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("UMLM_CACHE", str(tmp_path / "absent"))
    assert list_verb.main(["--json"]) == 0 and json.loads(capsys.readouterr().out) == []
    assert list_verb.main([]) == 0 and "No models" in capsys.readouterr().err
    assert not (tmp_path / "absent").exists()


def test_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UMLM_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "umlm"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "umlm"
    monkeypatch.setenv("UMLM_CACHE", "~/own")
    assert cache_folder() == tmp_path / "own"


def test_rm(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not asked at a terminal, it deletes only with --yes; a name without version means all versions."""
    assert rm.main(["pypi:tiny"]) == 1 and "pass --yes" in capsys.readouterr().err
    assert (cache / FILE).exists()
    assert rm.main(["pypi:tiny", "--yes"]) == 0 and "2.0 MB" in capsys.readouterr().out
    assert not (cache / "pypi" / "tiny").exists() and cache.exists()


@pytest.mark.parametrize("name", ["", ".", "..", "../..", "/", "pypi:..", "pypi:tiny==..", "tiny", "pypi:"])
def test_rm_takes_names_only(name: str, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rm.main([name, "--yes"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert (cache / FILE).exists()


def test_errors_are_one_line_and_debug_shows_more(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pull.main(["no-such-model"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("umlm pull: 'no-such-model': no such file") and captured.err.count("\n") == 1
    with pytest.raises(FileNotFoundError):
        pull.main(["no-such-model", "--debug"])


def test_reader_that_leaves_is_no_error(cache: Path) -> None:
    command = f"{sys.executable} -m umlm.list --json | head -0; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_pull_of_a_path_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pull.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}\n"


def test_kv_bytes_per_token() -> None:
    """G1: 80 layers, 8 KV heads, head_dim 128, 2 bytes: 327,680."""
    sizes = {"hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 80}
    assert kv_bytes_per_token({**zoo.CASES["llama"].config, **sizes}) == 327_680


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A tiny llama in bfloat16 with a tokenizer of five words, and a model card."""
    model = zoo_model.load(zoo.CASES["llama"].config, zoo.golden("llama").parameters)
    model.set_dtype(mx.bfloat16)
    save_model(model, zoo.CASES["llama"].config, tmp_path / "model")
    vocabulary = {"<unk>": 0, "a": 1, "b": 2, "c": 3, "d": 4}
    tokenizer = {"version": "1.0", "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}}
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "model" / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Tiny\n")
    return tmp_path / "model"


def test_show(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes by hand from the parameter shapes; nothing but headers is read."""
    parameters = sum(int(mx.prod(mx.array(shape)).item()) for shape in zoo.golden("llama").parameters.values())
    assert show.main([str(model_folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = {"architecture": "llama", "parameters": parameters, "nbytes": 2 * parameters, "context": 64}
    expected |= {"bits_per_weight": 16.0, "license": "apache-2.0", "chat_template": False, "tokenizer": "5 tokens"}
    expected |= {"kv_bytes_per_token": 3 * 2 * 2 * 12 * 2, "path": str(model_folder)}
    assert {key: found[key] for key in expected} == expected
    assert found["formats"]["BF16"]["parameters"] == parameters
    assert show.main([str(model_folder)]) == 0
    assert "64 tokens" in capsys.readouterr().out


def test_show_of_what_is_not_downloaded(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show.main(["pypi:absent"]) == 1
    assert capsys.readouterr().err == "umlm show: pypi:absent is not downloaded; run `umlm pull pypi:absent`\n"
