"""The paper's experiments (section 6), each a file; `simnets reproduce` runs them."""

from simnets.experiments.plan import EXPERIMENTS, trials_of
from simnets.experiments.reporting import report
from simnets.experiments.runner import run
from simnets.experiments.shipping import ship
from simnets.experiments.trial import Experiment, Trial

__all__ = ["EXPERIMENTS", "Experiment", "Trial", "report", "run", "ship", "trials_of"]
