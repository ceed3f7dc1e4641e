import subprocess
import sys

import pytest

# What stays of 24 MB after they were filled and freed, in MB.
PROGRAM = """
import sys
import torch
from simnets.training.memory import keep_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

kept = keep_memory() if sys.argv[1] == "keep" else False
before = resident()
block = torch.ones(6_000_000)
del block
print(int(kept), (resident() - before) // 10**6)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can be told")
def test_freed_memory_stays_with_the_process() -> None:
    def left(word: str) -> tuple[int, int]:
        command = [sys.executable, "-c", PROGRAM, word]
        kept, megabytes = map(int, subprocess.check_output(command, text=True).split())
        return kept, megabytes

    assert left("give back")[1] < 12
    kept, megabytes = left("keep")
    assert megabytes > 20 if kept else megabytes < 12
