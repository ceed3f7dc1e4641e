"""exp and log in at most ten arithmetic operations each (section 6.2, second footnote).

The paper counts "approximations that require up to 10 FLOPs per operation" for the exponentials and the
logarithm of MEX. These are ours: one rational function each, fitted for the smallest maximal error.
`mex(..., approximation="fast")` computes with them. They show what the cheap functions do to accuracy,
and serve hardware without exp and log; on a CPU torch's own functions are faster.

Guards for the ends of the range (clamp, select) are comparisons and are not counted.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Largest errors over every float32 input, float32's own rounding included.
EXP_RELATIVE_ERROR = 5e-6  # 7e-7 near 0: the rounding of x·log₂e adds up to 1.2e-7 for each unit of |x|
LOG_ABSOLUTE_ERROR = 1e-5  # 2e-6 near 1: the rounding of e·ln 2 adds up to 1.2e-7 for each unit of |log x|

_LOG2_E = math.log2(math.e)
_LN_2 = math.log(2.0)


def exp(x: Tensor) -> Tensor:
    """exp(x) ≈ 2^i·(p + f)/(p − f), p = q₀ + q₂·f², where i + f = x·log₂e and |f| ≤ ½: ten.

    2^f = (p + f)/(p − f) holds exactly for p = f·coth(f·ln 2/2), which is even and nearly a parabola.
    Relative error ≤ `EXP_RELATIVE_ERROR`; 0 below the range of the dtype, inf above 127.5·ln 2 = 88.376
    (1023.5·ln 2 in float64).

    >>> float(exp(torch.tensor(0.0)))
    1.0
    """
    low, high = (-104.0, 90.0) if x.dtype == torch.float32 else (-746.0, 711.0)
    t = x.clamp(low, high) * _LOG2_E  # 1
    i = t.round()  # 2
    f = t - i  # 3
    p = 2.8854081237294373 + 0.11523606495381047 * (f * f)  # 4, 5, 6
    return (p + f) / (p - f) * torch.exp2(i)  # 7, 8, 9, 10: the factor 2^i is one addition to the exponent


def log(x: Tensor) -> Tensor:
    """log(x) ≈ (e − ½)·ln 2 + (m − r)/(a·(m + r) + b), r = ½/m, where x = m·2^e and ½ ≤ m < 1: ten.

    The quotient is the [2/2] form of log(√2·m), odd about its zero m = √½. Absolute error ≤
    `LOG_ABSOLUTE_ERROR`; 0, inf and negative numbers give −inf, inf and NaN.

    >>> round(float(log(torch.tensor(10.0))), 5)
    2.30259
    """
    m, e = torch.frexp(x)  # 1
    r = torch.tensor(0.5, dtype=x.dtype) / m  # 2 (0.5 / m would be a reciprocal and a product)
    quotient = (m - r) / (0.33167867883035396 * (m + r) + 0.9451841603185848)  # 3 to 7
    value = (e - 0.5) * _LN_2 + quotient  # 8, 9, 10
    edge = torch.where(x == 0, -math.inf, torch.where(x == math.inf, math.inf, math.nan))
    return torch.where((x > 0) & (x < math.inf), value, edge.to(x.dtype))
