"""What LLM shows to a researcher: logits, hidden states and the network, against transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import tiny_chat
import zoo
import zoo_model
from mlx.utils import tree_flatten
from safetensors.numpy import load_file

from umlm import LLM, load

AGREE = 1e-4  # of the range of values


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, str]]:
    """A model of the zoo, loaded from files, and its name."""
    name = request.param
    folder = tmp_path_factory.mktemp("zoo") / name
    zoo_model.write_folder(folder, zoo.CASES[name].config, zoo.golden(name).parameters)
    tiny_chat.write_tokenizer(folder)
    with load(folder) as llm:
        yield llm, name


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= AGREE * np.ptp(expected)


def test_logits_equal_transformers(case: tuple[LLM, str]) -> None:
    llm, name = case
    golden = zoo.golden(name)
    logits = llm.logits(golden.tokens)
    assert isinstance(logits, mx.array)
    assert logits.shape == (len(golden.tokens), llm.config.vocab_size)
    assert_close(np.array(logits)[golden.positions], golden.logits)


def test_hidden_states_are_numbered_as_in_transformers(case: tuple[LLM, str]) -> None:
    llm, name = case
    with np.load(zoo.GOLDEN / "hidden_states.npz") as file:
        positions, expected = file["positions"], file[name]
    states = llm.hidden_states(zoo.golden(name).tokens, range(len(expected)))
    assert list(states) == list(range(len(expected))) == list(range(llm.config.num_hidden_layers + 1))
    for number, state in states.items():
        assert_close(np.array(state)[positions], expected[number])


def test_chosen_hidden_states_come_alone(case: tuple[LLM, str]) -> None:
    llm, _ = case
    assert {number: state.shape[0] for number, state in llm.hidden_states([3, 4, 5], [2, 0]).items()} == {0: 3, 2: 3}


@pytest.mark.parametrize("number", [-1, 99])
def test_a_hidden_state_that_does_not_exist_is_named(sentence: LLM, number: int) -> None:
    with pytest.raises(ValueError, match=f"hidden state {number} does not exist; this model has 0 to 1"):
        sentence.hidden_states("Hello", [number])


def test_the_network_is_a_module_with_hugging_face_s_names(case: tuple[LLM, str]) -> None:
    llm, name = case
    assert isinstance(llm.model, nn.Module)
    parameters = dict(tree_flatten(llm.model.parameters()))
    assert {key: tuple(array.shape) for key, array in parameters.items()} == zoo.golden(name).parameters


def test_the_network_s_weights_can_be_changed(sentence_folder: Path) -> None:
    """As research does: the head's rows swapped, so another token follows."""
    stored = load_file(sentence_folder / "model.safetensors")["lm_head.weight"]
    first, other = tiny_chat.sentence_ids()[0], 7
    swapped = stored.copy()
    swapped[[first, other]] = stored[[other, first]]
    with load(sentence_folder) as llm:
        llm.model.load_weights([("lm_head.weight", mx.array(swapped))], strict=False)
        assert llm.generate("Hello", max_tokens=1).token_ids == [other]


def test_logits_take_every_kind_of_prompt_and_refuse_what_generate_refuses(sentence: LLM) -> None:
    ids = sentence.tokenizer.encode("Hello")
    for prompt in ("Hello", ids, np.array(ids)):
        assert np.array(sentence.logits(prompt))[-1].argmax() == tiny_chat.sentence_ids()[0]
    with pytest.raises(ValueError, match="the prompt is empty"):
        sentence.logits("")
    with pytest.raises(ValueError, match="token ids from 0 to 289"):
        sentence.hidden_states([290], [0])


def test_config_and_tokenizer_are_the_checkpoint_s(sentence: LLM) -> None:
    assert sentence.config.model_type == "llama"
    assert sentence.config.max_position_embeddings == sentence.context == tiny_chat.CONTEXT
    assert sentence.tokenizer.decode(sentence.tokenizer.encode("One café 🦊")) == "One café 🦊"
