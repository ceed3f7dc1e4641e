"""Sums over all processes of `torch.distributed`, and the few rows that every process must see.

Every estimator of this room is written in terms of sums over rows, so that under `torchrun` the
sums of the processes are added up and all processes end with the same result. Without an initialised
process group each function works on the one process there is.

Rows carry random keys. "The k rows with the smallest keys" is a uniform sample that does not depend
on which process holds which row, nor on the order in which the rows came.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def world() -> tuple[int, int]:
    """(rank, number of processes); (0, 1) without a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _sendable(tensor: Tensor) -> Tensor:
    """NCCL moves what is on a GPU only."""
    return tensor.cuda() if dist.get_backend() == "nccl" and not tensor.is_cuda else tensor


def all_sum(*tensors: Tensor) -> None:
    """Adds each tensor over all processes, in place."""
    if world()[1] > 1:
        for tensor in tensors:
            sent = _sendable(tensor)
            dist.all_reduce(sent)
            tensor.copy_(sent)


def all_min(tensor: Tensor) -> None:
    """The least of each entry over all processes, in place."""
    if world()[1] > 1:
        sent = _sendable(tensor)
        dist.all_reduce(sent, op=dist.ReduceOp.MIN)
        tensor.copy_(sent)


def broadcast(tensor: Tensor) -> None:
    """The tensor of process 0 becomes everyone's, in place."""
    if world()[1] > 1:
        sent = _sendable(tensor)
        dist.broadcast(sent, src=0)
        tensor.copy_(sent)


def gather(rows: Tensor) -> Tensor:
    """The rows of all processes, those of process 0 first; processes may hold different numbers of rows."""
    rank, size = world()
    if size == 1:
        return rows
    counts = torch.zeros(size, dtype=torch.int64, device=rows.device)
    counts[rank] = len(rows)
    all_sum(counts)
    largest = int(counts.max())
    padded = rows.new_zeros(largest, *rows.shape[1:])
    padded[: len(rows)] = rows
    sent = _sendable(padded)
    parts = [torch.empty_like(sent) for _ in range(size)]
    dist.all_gather(parts, sent)
    held = [part[:count] for part, count in zip(parts, counts.tolist(), strict=True)]
    return torch.cat(held).to(rows.device)


def first_keys(keys: Tensor, k: int) -> Tensor:
    """Indices of the rows of this process that are among the k smallest keys of all processes."""
    mine = keys.argsort()[:k]
    if world()[1] > 1:
        everyones = gather(keys[mine]).sort().values[:k]
        mine = mine[keys[mine] <= everyones[-1]] if len(everyones) else mine
    return mine


def gather_first(rows: Tensor, keys: Tensor, k: int) -> Tensor:
    """The k rows with the smallest keys of all processes, in the order of their keys, on every process."""
    mine = first_keys(keys, k)
    if world()[1] == 1:
        return rows[mine]
    order = gather(keys[mine]).argsort()
    return gather(rows[mine])[order]


def random_keys(count: int, seed: int, device: torch.device | str = "cpu") -> Tensor:
    """Keys in [0, 1) for `count` rows of this process, as if the processes' rows were one after another."""
    rank, size = world()
    counts = torch.zeros(size, dtype=torch.int64)
    counts[rank] = count
    all_sum(counts)
    before, total = int(counts[:rank].sum()), int(counts.sum())
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(total, generator=generator, dtype=torch.float64)[before : before + count].to(device)
