"""Randomness without state: each random choice of a run is drawn from its own place in the run.

A resumed run then needs no stored generator, and every process of a distributed run knows what the
others draw.
"""

from __future__ import annotations

import hashlib


def seed_for(seed: int, *place: str | int) -> int:
    """A seed for one place of the run, such as seed_for(0, "noise", step): 32 bits, as all libraries take."""
    text = "/".join(str(part) for part in (seed, *place))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
