"""Not in the paper: deeper networks within the budget of its two-layer network.

That is 64.6 K parameters and 14.2 M operations, counted as everywhere here (`simnets.count_cost`).
`simnet4` is a SimNet all through, `simnet4_contrast_rectified` the same on patches of equal contrast and with
thresholds between layers, `simnet2_plus` a separable ConvNet with a SimNet as classifier.
What came out is in results/plus.json and, as a table, in results/README.md.
"""

from __future__ import annotations

from typing import Any

from simnets.experiments.trial import Experiment, Trial

# Teachers of three architectures; their opinions are soft, so that labels need no smoothing.
_DISTILLED: dict[str, Any] = {
    "teachers": ("caffe_quick-cifar10", "simnet2-cifar10", "resnet8-cifar10"),
    "label_smoothing": 0.0,
}

EXPERIMENT = Experiment(
    name="plus",
    title="Beyond the paper: more layers within the budget of its two-layer network",
    trials=(
        Trial("simnet4", variant="distilled", changes=_DISTILLED),
        Trial("simnet4"),
        Trial("simnet4_contrast_rectified"),
        Trial("simnet2_plus"),
    ),
    paper={},
    seeds=1,
)
