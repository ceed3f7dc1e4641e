"""Memory that a training keeps from step to step."""

from __future__ import annotations

import ctypes

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = 2**31 - 1
_LARGEST = 32 * 2**20  # what glibc allows, three times the largest map of a step of `simnet2`


def keep_memory() -> bool:
    """Let the C library keep what a step frees for the next one; False where it cannot be told so.

    Maps of several megabytes come from the system anew at every step otherwise, and each of their pages has
    to be found and cleared at its first use, which can take as long as the arithmetic
    (`benchmarks/memory.py`). It concerns the whole process and only glibc; others do it in their own way.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
