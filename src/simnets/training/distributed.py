"""The processes of one run: alone, or started by torchrun (gloo on CPUs, NCCL on GPUs)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from simnets.errors import SimNetsError

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class World:
    """Who am I among how many; every method is a no-op for a process that is alone."""

    rank: int = 0
    size: int = 1
    device: torch.device = _CPU

    @property
    def main(self) -> bool:
        """Whether this process speaks and writes for all."""
        return self.rank == 0

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """Each flag, true if any process raised it: all processes act on the same answer."""
        if self.size == 1:
            return list(flags)
        shared = torch.tensor(flags, dtype=torch.int32, device=self.device)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return [bool(flag) for flag in shared.tolist()]

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value, summed over all processes."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return [float(value) for value in total.tolist()]

    def share(self, data: bytes | None) -> bytes | None:
        """What the main process holds, given to all."""
        if self.size == 1:
            return data
        length = torch.tensor([-1 if data is None else len(data)], device=self.device)
        dist.broadcast(length, src=0)
        if int(length) < 0:
            return None
        if self.main:
            assert data is not None
            content = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device)
        else:
            content = torch.empty(int(length), dtype=torch.uint8, device=self.device)
        dist.broadcast(content, src=0)
        return content.cpu().numpy().tobytes()

    def share_buffers(self, model: nn.Module) -> None:
        """Give all processes the main one's buffers (running statistics drift apart within an epoch)."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)


def choose_device(name: str) -> torch.device:
    """The device for "auto", "cpu", "cuda" or "mps"; under torchrun each process takes its own GPU."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(candidate for candidate, there in available.items() if there)
    if name not in available:
        raise SimNetsError(f"device is {name!r}; expected auto, cpu, cuda or mps")
    if not available[name]:
        raise SimNetsError(f"device {name} is not available here; use --device auto or --device cpu")
    if name == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device(name)


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """Join the processes that torchrun started, if it did; leave them at the end."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World(device=device)
        return
    if device.type == "mps":
        raise SimNetsError("device mps cannot train in several processes; use --device cpu, or one process")
    mine = not dist.is_initialized()
    if mine:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        store, rank, size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
        # torchrun keeps its store when it restarts workers: without a name of its own, an attempt would find
        # the addresses of the processes that are gone.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"simnets/attempt {attempt}", store)  # type: ignore[attr-defined]
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    try:
        yield World(dist.get_rank(), dist.get_world_size(), device)
    finally:
        if mine:
            dist.destroy_process_group()
