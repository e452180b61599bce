"""Run as a process: a flood of long requests on a machine with little memory, for test_flood.py.

    python tests/flood.py FOLDER LIMIT

The budget is told of a control group (version 2) with this limit and the process's own use. Prints JSON: how requests
ended, the forecast of resident memory, its peak.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

import umlm.llm
from umlm import LLM, SamplingParams, load
from umlm.cache.memory import Available, available_memory, peak_memory, resident_memory

REQUESTS, PROMPT, ANSWER = 200, 900, 3


class Group:
    """A control group's files, whose use is what this process has in memory now."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.root, self.membership = folder, folder / "membership"
        self.membership.write_text("0::/job\n")
        (folder / "job").mkdir()
        (folder / "job/memory.max").write_text(f"{limit}\n")
        (folder / "job/memory.stat").write_text("inactive_file 0\n")

    def available(self) -> Available:
        (self.root / "job/memory.current").write_text(f"{resident_memory()}\n")
        return available_memory(self.root, self.membership)


def flood(llm: LLM) -> Counter[str]:
    """Long prompts of many lengths, each seventh too long for the context."""
    drawn = SamplingParams(
        max_tokens=ANSWER, ignore_eos=True, temperature=1, top_p=0.9, repetition_penalty=1.1, logprobs=5
    )
    greedy = SamplingParams(max_tokens=ANSWER, ignore_eos=True)
    generator = np.random.Generator(np.random.PCG64(0))
    streams, ends = [], Counter[str]()
    for number in range(REQUESTS):
        length = int(generator.integers(PROMPT // 2, PROMPT)) if number % 7 else llm.context + 1
        prompt = generator.integers(3, 250, length).tolist()
        try:
            streams.append(llm.engine.submit(prompt, drawn if number % 3 else greedy))
        except ValueError as error:
            assert "the context holds" in str(error)
            ends["refused"] += 1
    for stream in streams:
        ends[str([chunk.finish_reason for chunk in stream][-1])] += 1
    return ends


def main(folder: str, limit: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as files:
        group = Group(Path(files), limit)
        umlm.llm.available_memory = group.available  # type: ignore[attr-defined]
        with load(folder, dtype="float32", context=1000, max_requests=16, token_budget=128, kv_memory=1.0) as llm:
            plan, scheduler = llm.memory, llm.engine.scheduler
            preempted: list[int] = []
            preempt = scheduler.preempt
            scheduler.preempt = lambda request: (preempted.append(request.id), preempt(request))  # type: ignore
            ends = flood(llm)
            again = len(llm.generate([5] * 100, max_tokens=2, ignore_eos=True).token_ids)
            allocated = llm.engine.call(lambda: llm.engine.runner.store.allocated)
    return {
        "ends": ends,
        "again": again,
        "preempted": len(preempted),
        "pages": plan.num_pages,
        "allocated": allocated,
        "pages_bytes": plan.num_pages * plan.page_bytes,
        "before": limit - plan.limit.nbytes,
        "total": plan.total,
        "peak": peak_memory(),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
