"""Section 6.4, table 2: the three-layer SimNet with 192 channels and multiplicative noise.

Far beyond two CPU cores: what is run here shows that it learns, and what an epoch costs. On a GPU:

    simnets reproduce three-layer --epochs 300 --device cuda
"""

from __future__ import annotations

from simnets.experiments.trial import Experiment, Trial

EXPERIMENT = Experiment(
    name="three-layer",
    title="Three-layer SimNet, 192 channels (section 6.4, table 2)",
    trials=(Trial("simnet3", epochs=1),),
    paper={("simnet3", "", "cifar10"): 92.18},
    seeds=1,
)
