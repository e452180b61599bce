"""How exactly products with quantized matrices take activations."""

from __future__ import annotations

from umlm.kernels import cpu
from umlm.kernels.backends import serving


def use_activations(precision: str) -> None:
    """Set the precision for operations that the calling thread makes from now on.

    exact   float32 activations as fixed-point numbers of 24 bits, 16-bit floats of 16: all that matters to the result
    int16   16 bits, whatever the dtype
    int8    8 bits
    The numbers of 128 values share a unit. Raises ValueError for int8 where no kernel multiplies integers; there the
    others mean float32.
    """
    integers = serving("quantized_matmul") == "cpu" and cpu.extension is not None and "avx512" in cpu.extension.isa()
    if precision == "int8" and not integers:
        raise ValueError(
            "activations 'int8' needs CPU kernels for AVX512 with VNNI, which do not serve here; use exact"
        )
    if cpu.extension is not None:
        cpu.extension.set_thread_precision(precision)
