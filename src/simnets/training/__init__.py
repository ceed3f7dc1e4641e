"""Recipes, the training loop, checkpoints, distributed runs, evaluation and run reports."""

from simnets.training.checkpoint import Checkpoint, Checkpoints
from simnets.training.distributed import World, choose_device, joined
from simnets.training.divergence import TrainingDiverged
from simnets.training.evaluate import Evaluation, evaluate, scores_of
from simnets.training.loop import Outcome, TrainingInterrupted, fit
from simnets.training.predict import Prediction, predict
from simnets.training.recipe import RECIPES, Recipe, recipe_for
from simnets.training.run import Run, default_model, train

__all__ = [
    "RECIPES",
    "Checkpoint",
    "Checkpoints",
    "Evaluation",
    "Outcome",
    "Prediction",
    "Recipe",
    "Run",
    "TrainingDiverged",
    "TrainingInterrupted",
    "World",
    "choose_device",
    "default_model",
    "evaluate",
    "fit",
    "joined",
    "predict",
    "recipe_for",
    "scores_of",
    "train",
]
