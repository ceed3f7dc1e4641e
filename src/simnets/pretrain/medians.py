"""Weighted medians of every coordinate under every component: the means of a mixture at shape 1."""

from __future__ import annotations

import torch
from torch import Tensor

from simnets.pretrain.distributed import all_min, all_sum, gather, gather_first

_BINS = 256
_EDGE_ROWS = 8192


class SortedColumns:
    """Rows (N, d) sorted once by each coordinate, so that medians under many sets of weights are cheap.

    Each column is cut into bins that hold about equally many rows. For given weights, the weight of each bin
    is summed over all processes; only the bin in which half of it is reached is looked at row by row.
    """

    def __init__(self, rows: Tensor, keys: Tensor) -> None:
        self._order = rows.T.argsort(1)
        self._values = rows.T.gather(1, self._order).contiguous()
        sample = gather_first(rows, keys, _EDGE_ROWS).double()
        shares = torch.linspace(0, 1, _BINS + 1, dtype=torch.float64, device=rows.device)[1:-1]
        edges = torch.quantile(sample, shares, dim=0).T.to(rows.dtype).contiguous()
        # bin b of a column holds its sorted rows from start[b] to start[b + 1]
        inner = torch.searchsorted(self._values, edges, right=True)
        first, last = torch.zeros_like(inner[:, :1]), torch.full_like(inner[:, :1], len(rows))
        self._start = torch.cat([first, inner, last], 1)

    def medians(self, r: Tensor, total: Tensor) -> Tensor:
        """(n, d): the smallest value with at least half of the weight `total` (n,) at or below it.

        r (N, n) are the weights of this process's rows, `total` is their sum over all processes.
        """
        half = total / 2
        result = [self._column(t, r, half) for t in range(len(self._order))]
        return torch.stack(result, 1)

    def _column(self, t: int, r: Tensor, half: Tensor) -> Tensor:
        order, values, start = self._order[t], self._values[t], self._start[t]
        n = r.shape[1]
        bin_of = torch.empty_like(order)
        bin_of[order] = torch.repeat_interleave(torch.arange(_BINS, device=r.device), start.diff())
        weight = r.new_zeros(_BINS, n).index_add_(0, bin_of, r).double()
        all_sum(weight)
        upto = weight.cumsum(0)
        chosen = (upto < half).sum(0).clamp_max(_BINS - 1)
        component = torch.arange(n, device=r.device)
        before = upto[chosen, component] - weight[chosen, component]
        # the rows of the chosen bin of each component, padded to equal numbers
        begin, end = start[chosen], start[chosen + 1]
        longest = -(end - begin).max().reshape(1).double()
        all_min(longest)
        index = begin.unsqueeze(1) + torch.arange(int(-longest), device=r.device)
        inside = index < end.unsqueeze(1)
        index = index.clamp_max(len(values) - 1)
        value = torch.where(inside, values[index].double(), torch.inf)
        share = torch.where(inside, r[order[index], component.unsqueeze(1)].double(), 0.0)
        both = gather(torch.stack([value, share], 2).unsqueeze(0))
        value, sorting = both[..., 0].transpose(0, 1).flatten(1).sort(1)
        share = both[..., 1].transpose(0, 1).flatten(1).gather(1, sorting)
        reached = before.unsqueeze(1) + share.cumsum(1) >= half.unsqueeze(1)
        # rounding may leave the last row just short of half
        last = (value < torch.inf).sum(1, keepdim=True) - 1
        first = torch.where(reached.any(1, keepdim=True), reached.int().argmax(1, keepdim=True), last)
        return value.gather(1, torch.minimum(first, last).clamp_min(0)).squeeze(1)
