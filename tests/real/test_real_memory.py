"""What loading the default model takes from memory: its file's pages, which processes share, and little of its own."""

from __future__ import annotations

import subprocess
import sys

LOAD = """
from umlm.weights.folder import open_checkpoint
from umlm.weights.hub import DEFAULT_MODEL, resolve
from umlm.weights.load import load_model
import mlx.core as mx
def anonymous(): return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("RssAnon"))
mx.eval(mx.ones(8) + 1)
checkpoint = open_checkpoint(resolve(DEFAULT_MODEL, progress=False))
before = anonymous()
model = load_model(checkpoint)
print((anonymous() - before) << 10, sum(tensor.nbytes for tensor in checkpoint.tensors.values()))
"""


def test_loading_copies_only_rows_in_another_order() -> None:
    """q and k of 30 layers, [576, 576] and [192, 576] in 4-bit blocks of 20 bytes, are 8.3 MB of 98."""
    done = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True)
    taken, weights = map(int, done.stdout.split())
    copied = 30 * (576 + 192) * 576 // 32 * 20
    assert weights > 90e6
    assert taken < copied + 8e6  # modules, and what the allocator keeps
