"""The tuned settings of each network, beside recipe `fast`: chosen on held-out training images only.

How they were chosen is in docs/training_notes.md, and what `benchmarks/proxies.py` gave for them in
results/proxies.jsonl. A network that is not named here trains with the recipe as it stands.
"""

from __future__ import annotations

from typing import Any

SETTINGS: dict[str, dict[str, Any]] = {
    "caffe_quick": {"filter_lr": 0.02},
    "simnet3_compact": {"energy": 0.5, "filter_lr": 0.02, "template_lr": 1.0, "weight_lr": 1.0},
}
