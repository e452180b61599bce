"""What fits: contexts and users under a limit, and that the answers are the largest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from umlm.cache.memory import Available
from umlm.engine.fit import Fit
from umlm.engine.settings import EngineSettings
from umlm.models import build, config_from_dict
from umlm.weights.folder import open_checkpoint

MIB = 1 << 20


@pytest.fixture
def checkpoint_folder(sentence_folder: Path) -> Path:
    """A context of 4,096 tokens; 64 bytes of keys and values per token at 4 bytes a number."""
    return sentence_folder


def fit(folder: Path, **settings: Any) -> Fit:
    checkpoint = open_checkpoint(folder)
    return Fit(checkpoint, build(config_from_dict(checkpoint.config)), "float32", EngineSettings(**settings))


def limit(nbytes: int) -> Available:
    return Available(nbytes, "control group")


def test_the_demand_is_the_stored_weights_and_the_largest_step(checkpoint_folder: Path) -> None:
    found = fit(checkpoint_folder)
    assert found.demand.weights == sum(tensor.nbytes for tensor in found.checkpoint.tensors.values())
    assert found.with_(users=600).demand.activations > found.demand.activations > 0


def test_half_precision_halves_weights_and_pages(checkpoint_folder: Path) -> None:
    wide = fit(checkpoint_folder)
    half = Fit(wide.checkpoint, wide.model, "float16", wide.settings)
    assert half.demand.weights * 2 == wide.demand.weights
    assert half.layout.page_bytes * 2 == wide.layout.page_bytes


@pytest.mark.parametrize("kv_bits", [None, "8", "4"])
@pytest.mark.parametrize("users", [1, 7, 64])
def test_the_largest_context_fits_and_one_token_more_does_not(
    checkpoint_folder: Path, users: int, kv_bits: str | None
) -> None:
    asked = fit(checkpoint_folder, kv_bits=kv_bits, kv_memory="200kB").with_(users=users)
    there = limit(512 * MIB)
    context = asked.largest_context(there)
    assert 2 <= context <= 4096
    assert asked.with_(context=context).fits(there)
    assert context == 4096 or not asked.with_(context=context + 1).fits(there)


@pytest.mark.parametrize("context", [16, 100, 4096])
def test_the_most_users_fit_and_one_more_does_not(checkpoint_folder: Path, context: int) -> None:
    asked = fit(checkpoint_folder, context=context)
    there = limit(256 * MIB)
    users = asked.most_users(there)
    assert users >= 1
    assert asked.with_(users=users).fits(there) and not asked.with_(users=users + 1).fits(there)


def test_nothing_fits_into_nothing(checkpoint_folder: Path) -> None:
    asked = fit(checkpoint_folder)
    assert (asked.largest_context(limit(MIB)), asked.most_users(limit(MIB))) == (0, 0)


def test_a_plan_holds_what_is_asked_for_or_refuses(checkpoint_folder: Path) -> None:
    asked = fit(checkpoint_folder, context=1000, kv_memory="96kB")  # 64 bytes a token, and as much for growing
    assert not asked.fits(limit(512 * MIB))
    with pytest.raises(ValueError, match=r"keys and values of 1008 tokens .* of which pages may take 93\.8 KiB"):
        asked.plan(limit(512 * MIB))
    assert fit(checkpoint_folder, kv_memory="96kB").plan(limit(512 * MIB)).num_tokens == 736


def test_pages_are_no_more_than_all_requests_use(checkpoint_folder: Path) -> None:
    plan = fit(checkpoint_folder, context=100, max_requests=3).plan(limit(1 << 40))
    assert plan.num_pages == 3 * 7


def test_a_context_beyond_the_model_s_is_refused(checkpoint_folder: Path) -> None:
    with pytest.raises(ValueError, match="context 4097 is more than the 4096 tokens that the model was made for"):
        _ = fit(checkpoint_folder, context=4097).context
