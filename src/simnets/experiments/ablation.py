"""What the paper leaves out: pre-training against a random start, and ℓ1, ℓ2 and learned p, for `simnet2`;
and the paper's optimiser (SGD, no augmentation) beside ours, for `simnet2` and Caffe's ConvNet. The SimNet
has our start there: from section 5 to the letter it diverges (docs/training_notes.md).

A short schedule; what came out is in results/ablation.json and, as a table, in results/README.md.
"""

from __future__ import annotations

from simnets.experiments.trial import Experiment, Trial

_EPOCHS = 16
_OUR_START = {"perplexity": 25.0, "em": 0, "label_start": True, "learn_scale": True}

EXPERIMENT = Experiment(
    name="ablation",
    title="Start and order of the similarity, and the paper's optimiser, short schedule",
    trials=(
        Trial("simnet2", epochs=_EPOCHS),
        Trial("simnet2", epochs=_EPOCHS, variant="random", changes={"pretrain": False, "label_start": False}),
        Trial("simnet2", epochs=_EPOCHS, variant="no-labels", changes={"label_start": False}),
        Trial("simnet2", epochs=_EPOCHS, variant="l1", options={"p": 1.0}),
        Trial("simnet2", epochs=_EPOCHS, variant="learned-p", options={"p_mode": "learned"}),
        Trial("simnet2", epochs=_EPOCHS, variant="paper-optimiser", base="paper", changes=_OUR_START),
        Trial("caffe_quick", epochs=_EPOCHS),
        Trial("caffe_quick", epochs=_EPOCHS, variant="paper-optimiser", base="paper"),
    ),
    paper={},
    seeds=1,
)
