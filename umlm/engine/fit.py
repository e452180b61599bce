"""What a model needs of memory under some settings, from its headers, and what fits: pages, context, users."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import mlx.core as mx

from umlm.cache.activations import Step, activation_bytes
from umlm.cache.budget import Demand, Layout, PagePlan, plan_pages
from umlm.cache.memory import Available
from umlm.engine.settings import EngineSettings
from umlm.models import Decoder
from umlm.weights.checkpoint import Checkpoint
from umlm.weights.load import activation_dtype, loaded_bytes

MOST_USERS = 1 << 20


def settled(settings: EngineSettings, dtype: str) -> EngineSettings:
    """The settings with what is left open chosen: on a CPU and with dtype auto 16 bits where they change no answer."""
    auto = dtype == "auto" and mx.default_device().type == mx.DeviceType.cpu
    return replace(
        settings,
        kv_bits=settings.kv_bits or ("16" if auto else "none"),
        activations=settings.activations or os.environ.get("UMLM_ACTIVATIONS") or ("int16" if auto else "exact"),
    )


@dataclass(frozen=True)
class Fit:
    """A checkpoint under some settings.

    model  its network as `build` makes it: shapes, nothing computed
    dtype  as in weights/load.py
    """

    checkpoint: Checkpoint
    model: Decoder
    dtype: str
    settings: EngineSettings

    @property
    def made_for(self) -> int:
        """Tokens that the model was made for."""
        return self.model.config.context_length

    @property
    def context(self) -> int:
        """Most tokens of a request. ValueError where more is asked for than the model was made for."""
        asked = self.settings.context
        if asked is not None and asked > self.made_for:
            raise ValueError(f"context {asked} is more than the {self.made_for} tokens that the model was made for")
        return asked or self.made_for

    @property
    def layout(self) -> Layout:
        """What pages cost."""
        size = activation_dtype(self.checkpoint, self.dtype).size
        return Layout(self.model.state_specs(), self.settings.page_size, size, self.settings.bits)

    @property
    def demand(self) -> Demand:
        """What is taken whatever the pages."""
        step = Step(self.settings.token_budget, self.settings.max_requests, self.context)
        dtype = activation_dtype(self.checkpoint, self.dtype)
        return Demand(loaded_bytes(self.checkpoint, self.dtype), activation_bytes(self.model, step, dtype))

    def plan(self, limit: Available) -> PagePlan:
        """The pages that fit. ValueError with the numbers where they hold less than one request of `context` asks."""
        layout, settings = self.layout, self.settings
        return plan_pages(
            layout,
            self.demand,
            limit,
            kv_memory=settings.memory,
            num_pages=settings.num_pages,
            max_pages=layout.pages_for(self.context, settings.max_requests),
            min_pages=1 if settings.context is None else layout.pages_for(self.context),
        )

    def whole(self, limit: Available) -> PagePlan:
        """Pages for max_requests requests of `context` tokens, whether they fit or not."""
        layout = self.layout
        pages = layout.pages_for(self.context, self.settings.max_requests)
        return PagePlan(pages, layout.page_size, layout.page_bytes, layout.grown_bytes, self.demand, limit)

    def fits(self, limit: Available) -> bool:
        """Whether max_requests requests of `context` tokens fit together."""
        plan = self.whole(limit)
        rest = limit.nbytes - plan.demand.total
        return plan.pages <= min(rest, self.settings.memory.of(rest))

    def with_(self, *, context: int | None = None, users: int | None = None) -> Fit:
        """The same for another context or number of users."""
        old = self.settings
        users = users or old.max_requests
        new = replace(
            old, context=context or old.context, max_requests=users, token_budget=max(old.token_budget, users)
        )
        return replace(self, settings=new)

    def largest_context(self, limit: Available) -> int:
        """Most tokens of each of max_requests requests; 0 where not even two fit."""
        return _most(lambda context: self.with_(context=context).fits(limit), 2, self.made_for)

    def most_users(self, limit: Available) -> int:
        """Most requests of `context` tokens together."""
        return _most(lambda users: self.with_(users=users).fits(limit), 1, MOST_USERS)


def _most(holds: Callable[[int], bool], least: int, most: int) -> int:
    """The largest number that something holds for, which holds for all smaller ones; 0 where there is none."""
    if not holds(least):
        return 0
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if holds(middle) else (least, middle - 1)
    return least
