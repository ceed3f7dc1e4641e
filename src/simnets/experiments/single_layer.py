"""Section 6.2, figure 2(b): single-layer networks, accuracy against operations.

What came out is in results/single-layer.json and, as a figure, results/single_layer.png.
"""

from __future__ import annotations

from simnets.experiments.trial import Experiment, Trial

# The paper's figure has no table beside it; its curves are not numbers that could be quoted here.
_EPOCHS = 30
_SHORT = 8  # wide networks, as far as two cores go


def _trials(width: int, epochs: int) -> tuple[Trial, ...]:
    return (
        Trial(f"simnet1_{width}", epochs=epochs),
        Trial(f"simnet1_{width}", epochs=epochs, variant="l1", options={"p": 1.0}),
        Trial(f"convnet1_{width}", epochs=epochs),
    )


EXPERIMENT = Experiment(
    name="single-layer",
    title="Single-layer SimNets against a single-layer ConvNet (section 6.2, figure 2b)",
    trials=(
        *(trial for width in (50, 100, 200) for trial in _trials(width, _EPOCHS)),
        *(trial for width in (400, 800) for trial in _trials(width, _SHORT)),
        *(Trial(f"convnet1_{width}", epochs=_SHORT) for width in (1600, 3200)),
    ),
    paper={},
    seeds=1,
)
