"""The C++ kernels for CPUs: lazily evaluated MLX primitives in a compiled extension.

`extension` is the compiled module, or None; `why_not` then says why in one line.
"""

from __future__ import annotations

from types import ModuleType

import mlx.core as mx  # noqa: F401  (the extension links the library that this import loads)

extension: ModuleType | None
try:
    from umlm.kernels.cpu import _ext as extension
except ImportError as error:
    extension = None
    why_not = f"the compiled CPU kernels cannot be loaded ({error}); install a C++ compiler and reinstall umlm"
else:
    why_not = ""
