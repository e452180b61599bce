"""Being here makes this folder importable from all tests: zoo, zoo_model, fakes, tiny_chat.

The fixtures are tiny checkpoints on disk and the models loaded from them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_chat
import zoo
import zoo_model

import umlm
from umlm.models import build, config_from_dict

collect_ignore_glob = [] if sys.platform == "linux" else ["test_flood.py"]  # it asks /proc for peak memory


@pytest.fixture(scope="session")
def sentence_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat model that always says tiny_chat.SENTENCE."""
    return tiny_chat.write_chat_model(tmp_path_factory.mktemp("models") / "sentence")


@pytest.fixture(scope="session")
def loose_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, but at temperature 1 other tokens than the sentence's come often."""
    return tiny_chat.write_chat_model(tmp_path_factory.mktemp("models") / "loose", sure=5.0)


@pytest.fixture(scope="session")
def plain_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as sentence_folder, without a chat template."""
    return tiny_chat.write_chat_model(tmp_path_factory.mktemp("models") / "plain", template=False)


@pytest.fixture(scope="session")
def random_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with random weights, whose every token depends on all tokens before it, with a tokenizer."""
    config = {**zoo.CASES["llama"].config, "vocab_size": tiny_chat.tokenizer().get_vocab_size()}
    shapes = zoo_model.shapes(build(config_from_dict(config)))
    folder = zoo_model.write_folder(tmp_path_factory.mktemp("models") / "random", config, shapes)
    tiny_chat.write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def sentence(sentence_folder: Path) -> Iterator[umlm.LLM]:
    """The loaded model of sentence_folder."""
    with umlm.load(sentence_folder) as llm:
        yield llm


@pytest.fixture(scope="module")
def loose(loose_folder: Path) -> Iterator[umlm.LLM]:
    """The loaded model of loose_folder."""
    with umlm.load(loose_folder) as llm:
        yield llm


@pytest.fixture(scope="module")
def random_llm(random_folder: Path) -> Iterator[umlm.LLM]:
    """The loaded model of random_folder, in float32 throughout; its context is 64 tokens."""
    with umlm.load(random_folder, dtype="float32") as llm:
        yield llm
