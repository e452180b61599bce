"""Make tests/golden/hidden_states.npz: the hidden states that transformers gives for two cases of tests/zoo.py.

    python tests/golden/make_hidden_states.py

Needs the `parity` extra. Per case float32 [layers + 1, P, hidden] at POSITIONS of the case's tokens.
"""

from __future__ import annotations

import numpy as np
import torch
from make import make_model, zoo

NAMES = ("llama", "gemma3")
POSITIONS = (0, 7, 39)


def hidden_states(name: str) -> np.ndarray:
    """Of the whole sequence in one call, without a cache."""
    case = zoo.CASES[name]
    tokens = torch.from_numpy(case.tokens.astype(np.int64))[None]
    found = make_model(case, case.config)(input_ids=tokens, use_cache=False, output_hidden_states=True).hidden_states
    return np.stack([state[0].numpy()[list(POSITIONS)] for state in found])


def main() -> None:
    torch.set_grad_enabled(False)
    arrays = {name: hidden_states(name) for name in NAMES}
    np.savez_compressed(zoo.GOLDEN / "hidden_states.npz", positions=np.array(POSITIONS), **arrays)
    print({name: array.shape for name, array in arrays.items()})


if __name__ == "__main__":
    main()
