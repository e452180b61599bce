"""Time to the first token in a fresh process, and what it is made of.

    python benchmarks/first_token.py [MODEL] [--rounds 5] [--json]

Every round starts new processes; figures are medians in seconds. The model should be downloaded already: one
answer before the rounds sees to that and warms the file cache.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from statistics import median
from typing import Any

from umlm.bench.machine import hardware
from umlm.weights.hub import DEFAULT_MODEL

PROMPT = "What is the capital of France?"

# What a user's process does, one stage after the other; `begun` was read before the process was started.
WHOLE = """
import sys, time, json
marks = [("start", time.monotonic())]
def mark(name): marks.append((name, time.monotonic()))
begun, model, prompt = float(sys.argv[1]), sys.argv[2], sys.argv[3]
import umlm; mark("import umlm")
import umlm.llm; mark("import umlm.llm")
llm = umlm.load(model, progress=False); mark("load")
messages = [{"role": "user", "content": prompt}] if llm.tokenizer.chat_template else prompt
with llm.stream(messages, max_tokens=1) as chunks:
    next(iter(chunks)); mark("first token")
llm.close()
times = [begun, *(moment for _, moment in marks)]
print(json.dumps({name: after - before for (name, _), before, after in zip(marks, times, times[1:])}))
"""

# The stages inside `load`, called one by one.
LOAD = """
import sys, time, json
import umlm.llm
from umlm.weights.folder import open_checkpoint
from umlm.weights.hub import resolve
from umlm.weights.load import load_model
marks = [("", time.monotonic())]
def mark(name): marks.append((name, time.monotonic()))
path = resolve(sys.argv[2], progress=False); mark("find the files")
checkpoint = open_checkpoint(path); mark("headers")
checkpoint.load_tokenizer(); mark("tokenizer")
load_model(checkpoint, "auto"); mark("weights")
print(json.dumps({name: after - before for (_, before), (name, after) in zip(marks, marks[1:])}))
"""


def run(code: str, model: str) -> dict[str, float]:
    """Stages of a new process."""
    command = [sys.executable, "-c", code, str(time.monotonic()), model, PROMPT]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: median(stages[name] for stages in rounds) for name in rounds[0]}


def bare_import(rounds: int) -> float:
    """Seconds of `import umlm` alone: best of several processes, less the best that import nothing."""
    best = {"pass": float("inf"), "import umlm": float("inf")}
    for _ in range(rounds):
        for code in best:
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            best[code] = min(best[code], time.perf_counter() - start)
    return best["import umlm"] - best["pass"]


def measure(model: str, rounds: int) -> dict[str, Any]:
    run(WHOLE, model)
    taken = [(run(WHOLE, model), run(LOAD, model)) for _ in range(rounds)]
    whole = [stages for stages, _ in taken]
    return {
        "model": model,
        "hardware": hardware(),
        "rounds": rounds,
        "first_token": median(sum(stages.values()) for stages in whole),
        "stages": medians(whole),
        "inside_load": medians([stages for _, stages in taken]),
        "import_umlm_alone": bare_import(2 * rounds),
    }


def show(found: dict[str, Any]) -> None:
    print(f"model      {found['model']}")
    for name, value in found["hardware"].items():
        print(f"{name:10} {value}")
    print(f"\nfirst token after {found['first_token']:.2f} s (median of {found['rounds']} fresh processes)")
    for name, seconds in found["stages"].items():
        print(f"  {name:18} {seconds:7.3f} s")
        if name == "load":
            for inner, inner_seconds in found["inside_load"].items():
                print(f"    {inner:16} {inner_seconds:7.3f} s")
    print(f"`import umlm` alone: {found['import_umlm_alone']:.3f} s beyond a bare interpreter")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, help=f"any model (default: {DEFAULT_MODEL})")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    found = measure(arguments.model, arguments.rounds)
    print(json.dumps(found, indent=2)) if arguments.json else show(found)


if __name__ == "__main__":
    main()
