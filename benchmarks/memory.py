"""What keeping memory from step to step saves: training steps with and without `keep_memory`, interleaved.

    python benchmarks/memory.py simnet2 simnet2_l1 caffe_quick

A process keeps memory or does not, so each round starts two; prints, for each network, the median time of a
step (batch of 100, one thread, bfloat16) in both, and their ratio.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

from precision import steps

from simnets.training.memory import keep_memory

ROUNDS = 5


def measure(name: str, keep: bool) -> float:
    """Median seconds of a step, in a process of its own."""
    command = [sys.executable, __file__, "--one", name, str(int(keep))]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main(names: list[str]) -> None:
    if names[:1] == ["--one"]:
        if names[2] == "1" and not keep_memory():
            sys.exit("this machine's C library cannot be told to keep memory; expected glibc")
        print(steps(names[1], ("bfloat16",))["bfloat16"])
        return
    for name in names or ["simnet2", "simnet2_l1", "caffe_quick"]:
        times: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(ROUNDS):
            for keep, taken in times.items():
                taken.append(measure(name, keep))
        fresh, kept = (statistics.median(times[keep]) for keep in (False, True))
        print(f"{name}: fresh {1e3 * fresh:.1f} ms, kept {1e3 * kept:.1f} ms, ratio {fresh / kept:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
