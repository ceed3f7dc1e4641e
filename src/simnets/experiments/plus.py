"""Not in the paper: a deeper SimNet within the budget of its two-layer network.

That is 64.6 K parameters and 14.2 M operations, counted as everywhere here (`simnets.count_cost`).
What came out is in results/plus.json and, as a table, in results/README.md.
"""

from __future__ import annotations

from simnets.experiments.trial import Experiment, Trial

EXPERIMENT = Experiment(
    name="plus",
    title="Beyond the paper: four layers within the budget of its two-layer network",
    trials=(
        # Teachers of three architectures; their opinions are soft, so that labels need no smoothing.
        Trial(
            "simnet2_plus",
            variant="distilled",
            changes={
                "teachers": ("caffe_quick-cifar10", "simnet2-cifar10", "resnet8-cifar10"),
                "label_smoothing": 0.0,
            },
        ),
        Trial("simnet2_plus"),
    ),
    paper={},
    seeds=1,
)
