"""All experiments, and which of their trials are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simnets.errors import SimNetsError
from simnets.experiments import ablation, compact, plus, single_layer, three_layer, two_layer
from simnets.experiments.trial import Experiment, Trial

# In the order in which `all` runs them.
EXPERIMENTS: dict[str, Experiment] = {
    room.EXPERIMENT.name: room.EXPERIMENT
    for room in (two_layer, compact, plus, ablation, single_layer, three_layer)
}


def trials_of(
    experiment: Experiment,
    *,
    epochs: int | None = None,
    seeds: int | None = None,
    datasets: Sequence[str] | None = None,
    networks: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
    among: Sequence[Experiment] = (),
) -> list[Trial]:
    """The trials in order: seed 0 of all first, then seed 1 of all, and so on.

    variants: "plain" is the network without one.
    among: experiments that are run together; a name that one of them has is not refused.
    """
    possible = [trial for one in among or (experiment,) for trial in one.trials]
    where = "any experiment; they have" if len(among) > 1 else f"experiment {experiment.name}; it has"
    for name, asked, known in (
        ("datasets", datasets, {trial.data for trial in possible}),
        ("networks", networks, {trial.network for trial in possible}),
        ("variants", variants, {_variant(trial) for trial in possible}),
    ):
        if unknown := sorted(set(asked or ()) - known):
            raise SimNetsError(f"{name}: {unknown[0]} is not in {where} {', '.join(sorted(known))}")

    def asked_for(trial: Trial) -> bool:
        wanted = ((datasets, trial.data), (networks, trial.network), (variants, _variant(trial)))
        return all(not names or name in names for names, name in wanted)

    if not any(map(asked_for, possible)):
        given = (("datasets", datasets), ("networks", networks), ("variants", variants))
        words = [f"{name} {', '.join(names)}" for name, names in given if names]
        options = [f"--{name}" for name, names in given if names]
        raise SimNetsError(f"no trial has {' and '.join(words)}; leave out {' or '.join(options)}")
    for name, value in (("epochs", epochs), ("seeds", seeds)):
        if value is not None and value < 1:
            raise SimNetsError(f"{name} is {value}; expected a whole number of at least 1")
    chosen = [
        trial if epochs is None else replace(trial, epochs=epochs)
        for trial in experiment.trials
        if asked_for(trial)
    ]
    count = experiment.seeds if seeds is None else seeds
    return [trial.with_seed(seed) for seed in range(count) for trial in chosen]


def _variant(trial: Trial) -> str:
    return trial.variant or "plain"
