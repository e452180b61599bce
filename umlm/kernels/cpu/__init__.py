"""The C++ kernels for CPUs: lazily evaluated MLX primitives in a compiled extension.

`extension` is the compiled module, or None; `why_not` then says why in one line.
"""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from types import ModuleType

import mlx.core as mx

HOME = Path(__file__).parents[3]
# sources in the working folder come before an installed copy, and have no kernels of their own
REMEDY = "reinstall umlm, in a clone with pip install -e ."
MADE_FOR = "0.32.4"  # the release of mlx whose headers and library the extension is built with


def _load() -> tuple[ModuleType | None, str]:
    """The extension, or None and the reason."""
    if sys.platform != "linux":
        return None, f"there are no CPU kernels for {sys.platform}"
    present = mx.__version__  # type: ignore[attr-defined]
    if present != MADE_FOR:
        return None, f"the CPU kernels need mlx {MADE_FOR}, not {present}: pip install 'mlx[cpu]=={MADE_FOR}'"
    try:
        found = importlib.import_module(f"{__name__}._ext")
    except ModuleNotFoundError:
        return None, f"no CPU kernels are compiled for {HOME}: with a C++20 compiler, {REMEDY}"
    except ImportError as error:
        return None, f"the compiled CPU kernels do not load ({error}): reinstall umlm"
    if not found.isas():
        return None, "this processor lacks instructions that every CPU kernel needs"
    return found, ""


extension, why_not = _load()


@functools.cache
def check_settings() -> None:
    """Raise ValueError where UMLM_ISA, UMLM_NUM_THREADS or UMLM_ACTIVATIONS cannot be obeyed."""
    if extension is not None:
        extension.isa()
        extension.num_threads()
        extension.precision()
