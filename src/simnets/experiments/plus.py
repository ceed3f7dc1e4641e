"""Not in the paper: deeper networks within the budget of its two-layer network.

That is 64.6 K parameters and 14.2 M operations, counted as everywhere here (`simnets.count_cost`).
`simnet4` is a SimNet all through, `simnet2_plus` a separable ConvNet with a SimNet as classifier.
*contrast-rectified*: on patches of equal contrast, with thresholds between layers and templates of classes.
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
_CONTRAST_RECTIFIED: dict[str, Any] = {
    "variant": "contrast-rectified",
    "options": {
        # patches without mean and contrast need fewer of the first, which pays for the thresholds
        "whitened": [14, 32, 48, 56],
        "contrast": [0.1, 0.0, 0.0, 0.0],
        "rectify": [True, True, True, False],
        "bias_mode": ["learned", "learned", "learned", "none"],
    },
    "changes": {"class_energy": 2.0},
}

EXPERIMENT = Experiment(
    name="plus",
    title="Beyond the paper: more layers within the budget of its two-layer network",
    trials=(
        Trial("simnet4", variant="distilled", changes=_DISTILLED),
        Trial("simnet4"),
        Trial("simnet4", **_CONTRAST_RECTIFIED),
        Trial("simnet2_plus"),
    ),
    paper={},
    seeds=1,
)
