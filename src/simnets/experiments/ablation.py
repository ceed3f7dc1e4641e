"""What the paper leaves out, for `simnet2`: templates of classes (recipe field `class_energy`), with which it
starts, beside templates at clusters of patches, with which all other rows of `simnet2` start; pre-training
beside a random start; ℓ1, ℓ2 and learned p; and the paper's optimiser (SGD, no augmentation) beside ours, for
Caffe's ConvNet, too. The SimNet has our start there: from section 5 to the letter it diverges
(docs/training_notes.md).

A short schedule; what came out is in results/ablation.json and, as a table, in results/README.md.
"""

from __future__ import annotations

from simnets.experiments.trial import Experiment, Trial

_EPOCHS = 16
# Templates of both layers at clusters of patches, without labels; only offsets are counted from labels.
CLUSTERS = {"class_energy": 0.0, "energy": 0.0, "template_lr": 3.0, "weight_lr": 3.0}
_RANDOM = CLUSTERS | {"pretrain": False, "label_start": False}
_OUR_START = {"perplexity": 25.0, "em": 0, "label_start": True, "learn_scale": True}

EXPERIMENT = Experiment(
    name="ablation",
    title="Start and order of the similarity, and the paper's optimiser, short schedule",
    trials=(
        Trial("simnet2", epochs=_EPOCHS),
        Trial("simnet2", epochs=_EPOCHS, variant="clusters", changes=CLUSTERS),
        Trial("simnet2", epochs=_EPOCHS, variant="random", changes=_RANDOM),
        Trial("simnet2", epochs=_EPOCHS, variant="no-labels", changes=CLUSTERS | {"label_start": False}),
        Trial("simnet2", epochs=_EPOCHS, variant="l1", options={"p": 1.0}, changes=CLUSTERS),
        Trial(
            "simnet2", epochs=_EPOCHS, variant="learned-p", options={"p_mode": "learned"}, changes=CLUSTERS
        ),
        Trial("simnet2", epochs=_EPOCHS, variant="paper-optimiser", base="paper", changes=_OUR_START),
        Trial("caffe_quick", epochs=_EPOCHS),
        Trial("caffe_quick", epochs=_EPOCHS, variant="paper-optimiser", base="paper"),
    ),
    paper={},
    seeds=1,
)
