"""Prefix reuse, priorities and time limits through LLM and the command line: one option, one meaning."""

from __future__ import annotations

from pathlib import Path

import pytest
import zoo_model

import umlm
from umlm import LLM
from umlm.command import Parser
from umlm.engine.settings import EngineSettings
from umlm.options import add_arguments, from_namespace

PROMPT = list(range(3, 40))


def test_the_same_prompt_again_gives_the_same_tokens_from_known_pages(random_llm: LLM) -> None:
    """Field case K03."""
    cold, warm = (random_llm.generate(PROMPT, max_tokens=8) for _ in range(2))
    assert cold.token_ids == warm.token_ids
    assert cold.usage is not None and warm.usage is not None
    assert (cold.usage.cached_tokens, cold.usage.cache_miss) == (0, "unknown")
    assert (warm.usage.cached_tokens, warm.usage.cache_miss) == (32, "none")


def test_a_salt_keeps_to_itself(random_llm: LLM) -> None:
    found = [random_llm.generate(PROMPT[1:], cache_salt=salt).usage for salt in ("a", "b", "a")]
    assert [usage.cached_tokens for usage in found if usage is not None] == [0, 0, 32]


def test_changed_weights_are_not_answered_from_old_pages(random_folder: Path) -> None:
    with umlm.load(random_folder) as llm:
        before = llm.generate(PROMPT, max_tokens=8, logprobs=1)
        norm = llm.model.model.layers[0].input_layernorm
        llm.engine.call(lambda: setattr(norm, "weight", norm.weight * -1.5))
        llm.forget_prefixes()
        after = llm.generate(PROMPT, max_tokens=8, logprobs=1)
        assert after.usage is not None
        assert (after.usage.cached_tokens, after.usage.cache_miss) == (0, "identity")
        assert after.logprobs != before.logprobs
        assert llm.generate(PROMPT, max_tokens=8, logprobs=1).logprobs == after.logprobs


def test_a_time_limit_gives_what_there_is(random_llm: LLM) -> None:
    result = random_llm.generate(PROMPT, timeout=1e-9, priority=3)
    assert (result.finish_reason, result.token_ids) == ("timeout", [])


@pytest.mark.parametrize(("field", "value"), [("timeout", 0), ("priority", "high"), ("cache_salt", 1)])
def test_a_wrong_value_is_named(random_llm: LLM, field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        random_llm.generate(PROMPT, **{field: value})


def test_an_unknown_name_gets_all_names(random_llm: LLM) -> None:
    with pytest.raises(ValueError, match=r"'salt' is not an option; known: cache_salt, .*temperature, timeout"):
        random_llm.generate(PROMPT, salt="a")


def test_switched_off_nothing_is_kept(random_folder: Path) -> None:
    with umlm.load(random_folder, prefix_cache=False, admission="guaranteed") as llm:
        for _ in range(2):
            usage = llm.generate(PROMPT, max_tokens=2).usage
            assert usage is not None
            assert (usage.cached_tokens, usage.cache_miss) == (0, "off")
        scheduler = llm.engine.scheduler
        assert scheduler.guaranteed
        assert scheduler.pool.num_idle == 0


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], (True, "optimistic")),
        (["--no-prefix-cache", "--admission", "guaranteed"], (False, "guaranteed")),
        (["--prefix-cache"], (True, "optimistic")),
    ],
)
def test_flags(flags: list[str], expected: tuple[bool, str]) -> None:
    parser = Parser("generate", "")
    add_arguments(parser, EngineSettings)
    settings = from_namespace(EngineSettings, parser.parse_args(flags))
    assert (settings.prefix_cache, settings.admission) == expected


def test_the_context_that_costs_as_much_as_all_else(random_llm: LLM) -> None:
    """llama of 2 blocks: each token's parameters in them, over two multiply-adds a head number and token of context."""
    config = random_llm.config
    shapes = zoo_model.shapes(random_llm.model)
    blocks = sum(_size(shape) for name, shape in shapes.items() if ".layers." in name)
    each = 2 * config.num_hidden_layers * config.num_attention_heads * config.size_of_head
    assert random_llm.engine.scheduler.parity == blocks // each > 1


def _size(shape: tuple[int, ...]) -> int:
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def test_windowed_layers_do_not_cost_more_with_context() -> None:
    model = zoo_model.load_changed("gemma3", num_hidden_layers=6, layer_types=["sliding_attention"] * 6)
    assert model.config.context_parity(1000) is None
