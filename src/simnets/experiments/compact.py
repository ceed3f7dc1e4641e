"""Section 6.4, end: the three-layer SimNet and Network in Network, both with 10 channels.

`simnet3_compact_rectified`, ours, has thresholds between layers and is trained with batch normalisation,
which is folded away at the end; *normalized* is Network in Network trained with that.
`simnet3_compact_plus`, ours, is the same budget spent otherwise: a separable ConvNet with a SimNet as
classifier.
What came out is in results/compact.json and, as a table, in results/README.md.
"""

from __future__ import annotations

from simnets.experiments.trial import Experiment, Trial

EXPERIMENT = Experiment(
    name="compact",
    title="Compact networks of 5 K parameters and 3.5 M operations (section 6.4)",
    trials=(
        Trial("simnet3_compact"),
        Trial("nin_compact"),
        Trial("simnet3_compact_rectified"),
        Trial("nin_compact", variant="normalized", changes={"normalize": True}),
        Trial("simnet3_compact_plus"),
    ),
    paper={("simnet3_compact", "", "cifar10"): 76.8, ("nin_compact", "", "cifar10"): 72.3},
)
