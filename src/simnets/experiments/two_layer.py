"""Section 6.3, table 1: the two-layer SimNet against Caffe's ConvNet, and against ResNet-8 of MLPerf Tiny.

`convnet2`, with the geometry of `simnet2`, tells what the operators are worth apart from it.
`simnet2_l1`, ours, is `simnet2` with ℓ1 similarities in its first layer: the same parameters and operations.
`simnet2_contrast`, ours, is `simnet2` on patches of equal contrast.
`simnet2_rectified`, ours, is `simnet2` with a learned threshold of each of the first layer's 32 templates,
below which a patch is not similar at all.
`simnet2_contrast_rectified`, ours, has both.
*warped*: trained with half of the images turned, zoomed and sheared, which leaves less to memorise;
*strongly-warped*: twice as far.
*equal-operations*, *equal-parameters*: the ConvNet with as many operations, or parameters, as the SimNet.

What came out is in results/two-layer.json and, as a table, in results/README.md.
"""

from __future__ import annotations

from typing import Any

from simnets.experiments.trial import Experiment, Trial

_WARPED: dict[str, Any] = {"variant": "warped", "changes": {"warp": 0.1}}
_STRONGLY: dict[str, Any] = {"variant": "strongly-warped", "changes": {"warp": 0.2}}


def _narrow(variant: str, *channels: int) -> Trial:
    return Trial("caffe_quick", **_WARPED | {"variant": variant}, options={"channels": list(channels)})


EXPERIMENT = Experiment(
    name="two-layer",
    title="Two-layer SimNet against Caffe's ConvNet (section 6.3, table 1)",
    trials=(
        Trial("simnet2"),
        Trial("caffe_quick"),
        Trial("simnet2", "cifar100"),
        Trial("caffe_quick", "cifar100"),
        Trial("simnet2", "svhn"),
        Trial("caffe_quick", "svhn"),
        Trial("resnet8"),
        Trial("convnet2"),
        Trial("simnet2_l1"),
        Trial("simnet2_l1", "cifar100"),
        Trial("simnet2_l1", "svhn"),
        Trial("simnet2_contrast"),
        Trial("simnet2_rectified"),
        Trial("simnet2_contrast_rectified"),
        Trial("simnet2_rectified", "cifar100"),
        Trial("simnet2_rectified", "svhn"),
        Trial("simnet2", **_WARPED),
        Trial("simnet2_contrast", **_WARPED),
        Trial("simnet2_rectified", **_WARPED),
        Trial("simnet2_contrast_rectified", **_WARPED),
        Trial("simnet2_contrast_rectified", "cifar100", **_WARPED),
        Trial("caffe_quick", **_WARPED),
        Trial("simnet2_rectified", "cifar100", **_WARPED),
        Trial("caffe_quick", "cifar100", **_WARPED),
        Trial("simnet2_rectified", "cifar100", **_STRONGLY),
        Trial("simnet2_rectified", **_STRONGLY),
        Trial("caffe_quick", "cifar100", **_STRONGLY),
        Trial("caffe_quick", **_STRONGLY),
        _narrow("equal-operations", 26, 26, 52, 52),
        _narrow("equal-parameters", 21, 21, 42, 42),
    ),
    paper={
        ("simnet2", "", "cifar10"): 85.5,
        ("simnet2", "warped", "cifar10"): 85.5,
        ("caffe_quick", "", "cifar10"): 81.1,
        ("simnet2", "", "cifar100"): 54.6,
        ("caffe_quick", "", "cifar100"): 52.4,
        ("simnet2", "", "svhn"): 93.8,
        ("caffe_quick", "", "svhn"): 94.0,
    },
)
