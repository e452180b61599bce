"""Peers of `umlm bench`: which command they get, what is read from their answers, and what a missing one says.

llama.cpp and mlx-lm are not installed where tests run: programs that print what theirs print stand in for them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from umlm.bench import main
from umlm.bench.peers import MLX_LM, LlamaCpp, MlxLm, peer
from umlm.bench.workload import Workload

WORK = Workload(prefill=(16, 64), decode=(0, 32), batch=(1, 4), tokens=8, threads=3)

# prints its arguments to a file, and rates that can be told apart, in the form of llama-bench -o json
LLAMA_BENCH = """#!{python}
import json, sys
words = sys.argv[1:]
open({log!r}, "a").write(json.dumps(words) + "\\n")
value = lambda flag: [int(size) for size in words[words.index(flag) + 1].split(",")] if flag in words else [0]
rows = [dict(n_prompt=p, n_gen=0, n_depth=0, avg_ts=1000.0 + p, samples_ts=[1000.0 + p]) for p in value("-p") if p]
rows += [dict(n_prompt=0, n_gen=n, n_depth=d, avg_ts=100.0 + d, samples_ts=[100.0 + d])
         for n in value("-n") if n for d in value("-d")]
print(json.dumps(rows, indent=2))
print("load_backend: a line for people", file=sys.stderr)
"""
BATCHED_BENCH = """#!{python}
import json, sys
words = sys.argv[1:]
open({log!r}, "a").write(json.dumps(words) + "\\n")
print("main: n_kv_max = 4096")
for size in words[words.index("-npl") + 1].split(","):
    print(json.dumps(dict(pp=32, tg=8, pl=int(size), speed_pp=1.0, speed_tg=50.0 * int(size), speed=2.0)))
"""


def program(file: Path, text: str, **values: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text.format(python=sys.executable, **values), encoding="utf-8")
    file.chmod(0o755)
    return file


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    return file


@pytest.mark.parametrize(("given", "there"), [("", "llama-bench"), ("", "build/bin/llama-bench"), ("x", "x")])
def test_llama_cpp_gets_the_workload(tmp_path: Path, gguf: Path, given: str, there: str) -> None:
    log, root = tmp_path / "log", tmp_path / "llama"
    bench = program(root / there, LLAMA_BENCH, log=str(log))
    program(bench.with_name("llama-batched-bench"), BATCHED_BENCH, log=str(log))
    rates = peer(f"llama.cpp:{root / given}", str(gguf), []).rates(WORK)
    assert rates == {
        "prefill": {16: 1016.0, 64: 1064.0},
        "decode": {0: 100.0, 32: 132.0},
        "batch": {1: 50.0, 4: 200.0},
    }
    prompts, tokens, batches = (json.loads(line) for line in log.read_text(encoding="utf-8").splitlines())
    shared = ["-m", str(gguf), "-t", "3", "-r", "1", "-o", "json"]
    assert prompts == [*shared, "-p", "16,64", "-n", "0"]
    assert tokens == [*shared, "-p", "0", "-n", "8", "-d", "0,32"]
    assert batches[:8] == ["-m", str(gguf), "-npp", "32", "-ntg", "8", "-npl", "1,4"]
    assert int(batches[batches.index("-c") + 1]) >= 4 * (32 + 8)


def test_llama_cpp_without_the_batched_program_has_no_batches(tmp_path: Path, gguf: Path) -> None:
    program(tmp_path / "llama-bench", LLAMA_BENCH, log=str(tmp_path / "log"))
    rates = LlamaCpp(str(tmp_path), gguf).rates(WORK)
    assert rates["batch"] == {} and len(rates["prefill"]) == 2


def test_a_failing_program_s_last_words_are_the_error(tmp_path: Path, gguf: Path) -> None:
    text = "#!{python}\nimport sys; sys.exit('loading\\nerror: no such quantization')"
    bench = LlamaCpp(str(program(tmp_path / "llama-bench", text)), gguf)
    with pytest.raises(ValueError, match="llama-bench ended with 1: error: no such quantization"):
        bench.rates(WORK)


def test_a_file_that_is_no_program_is_one_line(tmp_path: Path, gguf: Path) -> None:
    file = tmp_path / "llama-bench"
    file.write_text("not a program", encoding="utf-8")
    with pytest.raises(ValueError, match="llama-bench cannot be run: Permission denied"):
        LlamaCpp(str(file), gguf).rates(WORK)


@pytest.mark.parametrize(
    ("asked", "others", "said"),
    [
        ("vllm", [], "--peer 'vllm' is unknown; known: llama.cpp:PATH, mlx-lm or mlx-lm:PYTHON"),
        ("llama.cpp", [], "--peer llama.cpp needs a path: llama.cpp:PATH of llama-bench or of the folder that has it"),
        ("llama.cpp:/not/there", [], "--peer llama.cpp: there is no llama-bench at /not/there"),
        ("mlx-lm:/not/there", [], "mlx-lm: no interpreter '/not/there': give one as --peer mlx-lm:PYTHON"),
        ("mlx-lm", [], f"mlx-lm is not installed for {sys.executable}: pip install mlx-lm, or name an interpreter"),
        ("mlx-lm", ["mlx-lm:/not/there"], "'/not/there'"),
    ],
)
def test_a_peer_that_is_not_there_is_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    random_folder: Path,
    asked: str,
    others: list[str],
    said: str,
) -> None:
    (tmp_path / "mlx_lm.py").write_text("raise ImportError", encoding="utf-8")  # also where it is installed
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    models = [word for other in others for word in ("--peer-model", other)]
    assert main([str(random_folder), "--peer", asked, *models]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert said in err


def test_llama_cpp_says_when_it_cannot_read_the_model(tmp_path: Path, random_folder: Path, gguf: Path) -> None:
    where = f"llama.cpp:{program(tmp_path / 'llama-bench', LLAMA_BENCH, log=str(tmp_path / 'log'))}"
    with pytest.raises(ValueError, match=r"reads \.gguf files, not .*name one with --peer-model llama\.cpp:FILE"):
        peer(where, str(random_folder), [])
    assert peer(where, str(random_folder), ["mlx-lm:x", f"llama.cpp:{gguf}"]).model == str(gguf)


MLX_LM_STANDIN = {
    "mlx_lm/__init__.py": """
import mlx.core as mx
calls = []
class Model:
    def __call__(self, ids, cache):
        cache.append(ids.shape)
        calls.append((ids.shape, len(cache)))
        return mx.zeros((*ids.shape, 7))
def load(path):
    import atexit
    atexit.register(lambda: open(path + "/calls", "w").write(repr(calls)))
    return Model(), "tokenizer"
""",
    "mlx_lm/models/__init__.py": "",
    "mlx_lm/models/cache.py": "def make_prompt_cache(model):\n    return []\n",
}


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PYTHONPATH with a package that answers like mlx_lm and writes down how it was called."""
    for name, text in MLX_LM_STANDIN.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return tmp_path


def test_mlx_lm_gets_the_workload(standin: Path) -> None:
    rates = MlxLm("", standin).rates(WORK)
    assert {kind: list(sizes) for kind, sizes in rates.items()} == {
        "prefill": [16, 64],
        "decode": [0, 32],
        "batch": [1, 4],
    }
    assert all(rate > 0 for sizes in rates.values() for rate in sizes.values())
    calls = (standin / "calls").read_text(encoding="utf-8")
    prompts = [shape for shape, depth in eval(calls) if depth == 1]
    assert prompts == [(1, 2), (1, 16), (1, 64), (1, 1), (1, 32), (1, 32), (4, 32)]
    assert calls.count("((4, 1), ") == WORK.tokens - 1


def test_mlx_lm_says_when_it_cannot_read_the_model(standin: Path, gguf: Path) -> None:
    with pytest.raises(ValueError, match=r"mlx-lm reads folders, not .*: name one with --peer-model mlx-lm:FOLDER"):
        MlxLm("", gguf)


def test_the_mlx_lm_script_needs_nothing_of_umlm() -> None:
    code = f"import runpy, sys; runpy.run_path({str(MLX_LM)!r}); print([m for m in sys.modules if m[:4] == 'umlm'])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout.strip() == "[]"


def test_ratios_are_shown(capsys: pytest.CaptureFixture[str], random_folder: Path, tmp_path: Path, gguf: Path) -> None:
    where = program(tmp_path / "llama-bench", LLAMA_BENCH, log=str(tmp_path / "log"))
    words = [str(random_folder), "--peer", f"llama.cpp:{where}", "--peer-model", f"llama.cpp:{gguf}"]
    words += ["--prefill", "8", "--decode", "0", "--batch", "2", "--tokens", "3", "--rounds", "2"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (other,) = found["peers"]
    assert (other["name"], other["model"]) == ("llama.cpp", str(gguf))
    assert other["prefill"] == {"8": 1008.0} and other["batch"] == {}
    assert other["ratio"]["prefill"]["8"] == pytest.approx(found["prefill"]["8"] / 1008)
    assert len((tmp_path / "log").read_text(encoding="utf-8").splitlines()) == 4, "two programs in each of two rounds"
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "llama.cpp   ratio" in out and f"llama.cpp runs {gguf}" in out
    (batch,) = [line for line in out.splitlines() if line.startswith("batch")]
    assert batch.split()[-2:] == ["-", "-"]
