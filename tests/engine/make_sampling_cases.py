"""Make sampling_cases.json: what transformers' logits processors do with random logits (needs torch, transformers).

Run from the repository: python tests/engine/make_sampling_cases.py
"""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

VOCAB = 48
TEMPERATURES, TOP_KS, TOP_PS, MIN_PS = [0.3, 1.0, 2.5], [0, 1, 7, 100], [1.0, 0.9, 0.4], [0.0, 0.1, 1.0]


def processors(temperature, top_k, top_p, min_p, penalty):
    chosen = [RepetitionPenaltyLogitsProcessor(penalty), TemperatureLogitsWarper(temperature)]
    chosen += [TopKLogitsWarper(top_k)] if top_k else []
    chosen += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    chosen += [MinPLogitsWarper(min_p)] if min_p else []
    return LogitsProcessorList(chosen)


def case(seed, temperature, top_k, top_p, min_p):
    generator = np.random.Generator(np.random.PCG64(seed))
    logits = generator.normal(0, 3, VOCAB).astype(np.float32)
    context = generator.integers(0, VOCAB, 20).tolist()
    penalty = [1.0, 1.5, 0.7][seed % 3]
    scores = processors(temperature, top_k, top_p, min_p, penalty)(torch.tensor([context]), torch.tensor(logits)[None])
    probabilities = torch.softmax(scores[0].double(), dim=-1).tolist()
    kept = {token: probability for token, probability in enumerate(probabilities) if math.isfinite(scores[0, token])}
    fields = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "repetition_penalty": penalty}
    return {"params": fields, "logits": [float(value) for value in logits], "context": context, "kept": kept}


if __name__ == "__main__":
    grid = itertools.product(TEMPERATURES, TOP_KS, TOP_PS, MIN_PS)
    cases = [case(seed, *values) for seed, values in enumerate(grid)]
    Path(__file__).with_name("sampling_cases.json").write_text(json.dumps(cases))
