"""The commands as processes: how they are started, what they say of themselves, pipes, interrupts, encodings."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import interrupted
import pytest
from tiny_chat import SENTENCE

from umlm import __version__
from umlm.cli import VERBS, main

MODULE = [sys.executable, "-m", "umlm"]
ENDLESS = ["--prompt", "Hello", "--ignore-eos", "--max-tokens", "4000"]


def run(*words: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    command = list(map(str, words))
    return subprocess.run(
        command, **{"capture_output": True, "encoding": "utf-8", "stdin": subprocess.DEVNULL, "timeout": 60, **options}
    )


@pytest.mark.parametrize("start", [["-m", "umlm.generate"], ["-m", "umlm", "generate"], ["-m", "umlm.cli", "generate"]])
def test_a_verb_is_a_module_too(sentence_folder: Path, start: list[str]) -> None:
    ended = run(sys.executable, *start, "--model", sentence_folder, "--prompt", "Hello")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, SENTENCE + "\n", "")


def test_the_installed_command_reads_a_pipe(sentence_folder: Path) -> None:
    umlm = shutil.which("umlm", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert umlm is not None, "the package is not installed: pip install -e '.[test]'"
    ended = run(umlm, "generate", "--model", sentence_folder, stdin=None, input="Hello\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, SENTENCE + "\n", "")


def test_the_cli_s_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    for words, code, said in (
        (["--version"], 0, f"umlm {__version__}\n"),
        (["--help"], 0, "usage: umlm VERB [options]\n"),
        ([], 0, "usage: umlm VERB [options]\n"),
    ):
        assert main(words) == code
        out, err = capsys.readouterr()
        assert out.startswith(said) and err == ""
    assert all(verb in out for verb in VERBS)


@pytest.mark.parametrize(("verb", "hint"), [("genrate", "; did you mean 'generate'?"), ("frobnicate", "")])
def test_an_unknown_verb_is_one_line(capsys: pytest.CaptureFixture[str], verb: str, hint: str) -> None:
    assert main([verb]) == 2
    assert capsys.readouterr() == ("", f"umlm: {verb!r} is not a verb{hint} (umlm --help lists them)\n")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_helps(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert main([verb, "--help"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].startswith(f"usage: umlm {verb} [")
    assert f"`umlm {verb}" in out, "the first line of the module's docstring is missing"
    assert "--debug" in out and err == ""


@pytest.mark.parametrize("verb", VERBS)
def test_misuse_of_any_verb_is_one_line(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert main([verb, "x", "--frobnicate"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"umlm {verb}: ") and err.count("\n") == 1
    assert "--frobnicate" in err


def test_an_error_is_a_traceback_with_debug_only() -> None:
    words = [*MODULE, "generate", "--model", "no/such/folder", "--prompt", "x"]
    plain, debug = run(*words), run(*words, "--debug")
    assert (plain.returncode, plain.stdout) == (1, "")
    assert plain.stderr.startswith("umlm generate: 'no/such/folder'") and plain.stderr.count("\n") == 1
    assert debug.returncode == 1
    assert "Traceback" in debug.stderr and "FileNotFoundError" in debug.stderr


CLI = "import runpy, sys; sys.argv[0] = 'umlm'; runpy.run_module('umlm', run_name='__main__', alter_sys=True)"


def test_an_interrupt_keeps_what_was_said(sentence_folder: Path) -> None:
    """SIGINT in the middle of a stream: exit code 130, the line is ended, no traceback."""
    process = interrupted.start(CLI, "generate", "--model", str(sentence_folder), *ENDLESS)
    assert process.stdout is not None and process.stderr is not None
    begun = process.stdout.read(len(SENTENCE))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert begun == SENTENCE
    said = (begun + out).removesuffix("\n")
    assert (SENTENCE * 4000).startswith(said.removesuffix("\ufffd"))
    assert out.endswith("\n") and err == ""


def test_text_is_written_while_it_comes(sentence_folder: Path) -> None:
    process = interrupted.start(CLI, "generate", "--model", str(sentence_folder), *ENDLESS)
    assert process.stdout is not None
    process.stdout.read(1)
    assert process.poll() is None, "the first character came with the last"
    process.kill()
    process.communicate()


READERS = {
    "answer": ["generate", "--model", "MODEL", *ENDLESS],
    "help": ["generate", "--help"],
    "list": ["list", "--json"],
    "show": ["show", "MODEL"],
    "usage": ["--help"],
}


@pytest.mark.parametrize("kind", READERS)
def test_a_reader_that_leaves_is_no_error(sentence_folder: Path, tmp_path: Path, kind: str) -> None:
    """As `| head -1` does, but before anything is written."""
    reading, writing = os.pipe()
    environment = {**os.environ, "UMLM_CACHE": str(tmp_path)}
    command = [*MODULE, *(str(sentence_folder) if word == "MODEL" else word for word in READERS[kind])]
    os.close(reading)
    ended = run(*command, capture_output=False, stdout=writing, stderr=subprocess.PIPE, env=environment)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_head_ends_an_endless_answer(sentence_folder: Path) -> None:
    start = time.monotonic()
    command = f"{sys.executable} -m umlm generate --model {sentence_folder} {' '.join(ENDLESS)} | head -c 9"
    ended = run("bash", "-c", command)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, SENTENCE[:8], "")
    assert time.monotonic() - start < 40


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"LC_ALL": "C"}, SENTENCE.encode()),
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, b"One caf?, two foxes? end."),
        ({"PYTHONIOENCODING": "latin-1"}, "One café, two foxes? end.".encode("latin-1")),
        ({"PYTHONIOENCODING": "ascii:backslashreplace"}, b"One caf\\xe9, two foxes\\U0001f98a end."),
    ],
)
def test_no_encoding_of_the_terminal_is_fatal(
    sentence_folder: Path, environment: dict[str, str], expected: bytes
) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONIOENCODING", "PYTHONUTF8", "LANG")}
    words = [*MODULE, "generate", "--model", sentence_folder, "--prompt", "Hello"]
    ended = run(*words, encoding=None, env={**kept, **environment})
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, expected + b"\n", b"")


def test_a_stdin_that_is_no_text_is_one_line(sentence_folder: Path) -> None:
    words = [*MODULE, "generate", "--model", sentence_folder]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    ended = run(*words, encoding=None, stdin=None, input=b"Hello \xff", env=environment)
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert ended.stderr == b"umlm generate: stdin is no utf-8 text: invalid start byte at byte 6\n"


def test_a_terminal_as_stdin_is_no_prompt(sentence_folder: Path) -> None:
    master, slave = os.openpty()
    ended = run(*MODULE, "generate", "--model", sentence_folder, stdin=slave)
    os.close(slave), os.close(master)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("umlm generate: no prompt: ") and ended.stderr.count("\n") == 1


@pytest.mark.parametrize("quiet", [False, True])
def test_a_terminal_shows_a_bar_unless_quiet(sentence_folder: Path, quiet: bool) -> None:
    master, slave = os.openpty()
    flags = ["--quiet"] if quiet else []
    words = [*MODULE, "generate", "--model", sentence_folder, "--prompt", "Hello", *flags]
    ended = run(*words, capture_output=False, stdout=subprocess.PIPE, stderr=slave)
    os.write(slave, b"end")
    seen = os.read(master, 100_000).decode()
    os.close(slave), os.close(master)
    assert (ended.returncode, ended.stdout) == (0, SENTENCE + "\n")
    assert seen == "end" if quiet else "loading" in seen


def test_without_a_model_the_default_one_answers() -> None:
    ended = run(*MODULE, "generate", "--prompt", "What is the capital of France?", "--max-tokens", 12, timeout=600)
    assert (ended.returncode, ended.stdout) == (0, "The capital of France is Paris.\n")
    assert ended.stderr == ""
