"""A network that knows its images before it has seen a label: filters and templates from unlabelled digits.

Pre-trains `simnet_mlpconv` (section 5 of the paper), prints what was found, and writes the report with its
pictures to runs/pretrained.

    python examples/pretrain_without_labels.py
"""

from rich.console import Console

import simnets
from simnets.data import load_dataset

digits = load_dataset("digits", "train")
model = simnets.create_model("simnet_mlpconv", input_shape=(1, 8, 8), whitened=16, templates=24)

# Patches are whitened by ICA, then a mixture of generalized Gaussians gives templates z and weights u.
report = simnets.pretrain_model(model, digits.images)
Console().print(report.table())

# The same with p learned: the mixture estimates its shape, which is where p starts.
free = simnets.create_model(
    "simnet_mlpconv", input_shape=(1, 8, 8), whitened=16, templates=8, p_mode="learned"
)
simnets.pretrain_model(free, digits.images, simnets.PretrainConfig(patches=2000, iterations=10))
print(f"shape of the patches' distribution: p = {free.layers[0].conv_similarity.similarity.p:.2f}")

# Train either from here with simnets.training.train(model, …), or look at the pictures:
for path in report.save("runs/pretrained"):
    print(path)
