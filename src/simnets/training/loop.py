"""The training loop: softmax loss, a step at a time, able to stop and go on at any of them.

    outcome = fit(model, training, recipe=RECIPES["fast"], validation=validation)

Every random choice is a function of the seed and of the step (seeds.py), the learning rate one of the
step (schedule.py); so a checkpoint is: the step, the tensors, and the metrics so far.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from simnets.data import Augmentation, ImageDataset, batches
from simnets.errors import SimNetsError
from simnets.training import preparation
from simnets.training.averaging import Average
from simnets.training.checkpoint import Checkpoint, Checkpoints
from simnets.training.display import Display, Moment
from simnets.training.distillation import soft_labels
from simnets.training.distributed import World
from simnets.training.divergence import TrainingDiverged, first_non_finite, require_finite
from simnets.training.evaluate import arranged, scores_of
from simnets.training.optimizer import make_optimizer
from simnets.training.recipe import Recipe
from simnets.training.schedule import rate
from simnets.training.seeds import seed_for

# Reading a number back from a GPU stalls it; there, look only this often.
_LOOK_EVERY = 20


class TrainingInterrupted(KeyboardInterrupt):
    """A signal asked the run to stop, or its time was up (signum 0); it finished its step and saved."""

    def __init__(self, signum: int, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.signum = signum
        self.step = step


@dataclass
class Outcome:
    """What is left of a training besides the weights: a record an epoch, seconds of work, and how it
    started, in words and as the numbers of the pre-training (those of `PretrainReport.to_json`)."""

    history: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    pretraining: dict[str, Any] | None = None


def fit(
    model: nn.Module,
    training: ImageDataset,
    *,
    recipe: Recipe,
    validation: ImageDataset | None = None,
    teachers: Sequence[nn.Module] = (),
    seed: int = 0,
    world: World | None = None,
    amp: str | None = None,
    compile: bool = False,
    checkpoints: Checkpoints | None = None,
    checkpoint_minutes: float = 5.0,
    deadline: float | None = None,
    display: Display | None = None,
    on_epoch: Callable[[list[dict[str, Any]]], None] | None = None,
) -> Outcome:
    """Prepare `model`, train it in place and fold it into the paper's parameters.

    With `checkpoints`, go on from the last one if there is one. At `deadline` (of time.monotonic()) save and
    raise TrainingInterrupted with signum 0. `on_epoch` gets the records of all epochs
    so far, after each. `teachers` are asked once about every image (distillation.py).
    """
    world = world or World(device=next(model.parameters()).device)
    display = display or Display()
    outcome = Outcome()
    found = checkpoints.read(display.say) if checkpoints is not None and world.main else None
    shared = world.share(None if found is None else found.pack())
    if shared is None:
        _prepare(model, training, recipe, seed, outcome, display)
        # The processes may have prepared with other rounding; from here on they hold the same numbers.
        start = world.share(Checkpoint(model.state_dict(), {}).pack() if world.main else None)
        assert start is not None
        model.load_state_dict(Checkpoint.unpack(start).tensors)
    else:
        found = Checkpoint.unpack(shared)
        model.load_state_dict(_part(found.tensors, "model"))
    targets = _ask(teachers, training, recipe, outcome, display) if teachers else training.labels
    loop = _Loop(model, training, validation, recipe, seed, world, amp, compile, outcome, display)
    loop.targets = targets.to(world.device)
    loop.checkpoints, loop.checkpoint_seconds = checkpoints, 60 * checkpoint_minutes
    loop.deadline = math.inf if deadline is None else deadline
    loop.on_epoch = on_epoch
    if found is None:
        loop.save()
    else:
        loop.restore(found)
        display.say(f"going on after step {loop.step} of {loop.steps}")
    with _signals(loop), contextlib.closing(display):
        loop.run()
    if loop.average is not None:
        loop.average.swap()
    preparation.finish(model, recipe)
    model.eval()
    return outcome


def _prepare(
    model: nn.Module, training: ImageDataset, recipe: Recipe, seed: int, outcome: Outcome, display: Display
) -> None:
    def report(text: str) -> None:
        outcome.notes.append(text)
        display.say(text)

    torch.manual_seed(seed_for(seed, "prepare"))
    started = time.monotonic()
    found = preparation.prepare(model, training, recipe, seed=seed_for(seed, "prepare"), report=report)
    outcome.seconds += time.monotonic() - started
    outcome.pretraining = None if found is None else json.loads(found.to_json())


def _ask(
    teachers: Sequence[nn.Module], training: ImageDataset, recipe: Recipe, outcome: Outcome, display: Display
) -> Tensor:
    """The targets of a run with teachers; before its clocks start, so that the time left is that of steps."""
    started = time.monotonic()
    targets = soft_labels(teachers, training, recipe, display.say)
    outcome.seconds += time.monotonic() - started
    return targets


class _Loop:
    """One run under way."""

    def __init__(
        self,
        model: nn.Module,
        training: ImageDataset,
        validation: ImageDataset | None,
        recipe: Recipe,
        seed: int,
        world: World,
        amp: str | None,
        compile: bool,
        outcome: Outcome,
        display: Display,
    ) -> None:
        self.model, self.recipe, self.seed, self.world = model, recipe, seed, world
        self.outcome, self.display = outcome, display
        self.validation = validation
        self.amp = {None: None, "bf16": torch.bfloat16}[amp]
        device = world.device
        self.training = dataclasses.replace(
            training, images=training.images.to(device), labels=training.labels.to(device)
        )
        changed = recipe.flip or recipe.shift or recipe.cutout or recipe.warp
        options = (recipe.flip, recipe.shift, recipe.cutout, recipe.border, recipe.warp)
        self.augmentation = Augmentation(*options) if changed else None
        self.targets = self.training.labels  # of the loss: labels, or probabilities with teachers
        self.places = torch.arange(len(training), device=device)
        self.stream: Iterator[tuple[Tensor, Tensor]] | None = None
        # A set smaller than a batch is one batch; the images left over at an epoch's end wait for another
        # epoch's order, so that all steps weigh the same.
        self.batch = min(recipe.batch_size, len(training))
        if self.batch % world.size:
            raise SimNetsError(
                f"batch_size is {self.batch}, which {world.size} processes cannot share equally; "
                f"use {self.batch - self.batch % world.size or world.size}"
            )
        self.steps_per_epoch = len(training) // self.batch
        self.steps = recipe.epochs * self.steps_per_epoch
        self.step = 0

        self.learned = [value for value in model.parameters() if value.requires_grad]
        self.optimizer = make_optimizer(preparation.parameter_groups(model, recipe), recipe)
        self.peaks = [group["lr"] for group in self.optimizer.param_groups]
        self.average = Average(model, recipe.ema) if recipe.ema > 0 else None
        network: nn.Module = model
        if world.size > 1:
            # Only running statistics change from step to step; other buffers need no exchange.
            normalised = any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
            network = DistributedDataParallel(
                model, forward_sync_buffers=normalised, gradient_as_bucket_view=True
            )
        self.network: Callable[[Tensor], Tensor] = torch.compile(network) if compile else network

        self.look_every = 1 if device.type == "cpu" else _LOOK_EVERY
        self.pending: list[
            Tensor
        ] = []  # (loss, share right, norm of the gradient) of steps not yet looked at
        self.sums = [0.0, 0.0, 0.0, 0.0]  # of this epoch: the three, and the number of steps
        self.checkpoints: Checkpoints | None = None
        self.checkpoint_seconds = math.inf
        self.deadline = math.inf
        self.on_epoch: Callable[[list[dict[str, Any]]], None] | None = None
        self.signum: int | None = None
        self.begin()

    def begin(self) -> None:
        """Start the clocks; what was worked before is in the outcome."""
        self.started = self.saved = self.epoch_started = time.monotonic()
        self.seconds_before, self.first_step, self.epoch_first_step = (
            self.outcome.seconds,
            self.step,
            self.step,
        )

    # -- the run -------------------------------------------------------------------------------------

    def run(self) -> None:
        """All steps that are left."""
        self.model.train()
        while self.step < self.steps:
            at_end = (self.step + 1) % self.steps_per_epoch == 0
            look = at_end or (self.step + 1) % self.look_every == 0
            if not self._advance(look):
                continue
            if look:
                self.display.step(self._moment())
            if at_end:
                self._end_epoch()
            if look:
                due = time.monotonic() - self.saved >= self.checkpoint_seconds
                late = time.monotonic() >= self.deadline
                stop, due = self.world.any([self.signum is not None or late, due])
                if stop or due or at_end:
                    self.save()
                if stop and self.step < self.steps:
                    raise TrainingInterrupted(self.signum or (0 if late else signal.SIGTERM), self.step)

    def _advance(self, look: bool) -> bool:
        """One step of the optimiser; False if the run had to go back to its last checkpoint instead."""
        factor = rate(self.recipe, self.step / self.steps)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * factor
        images, places = self._next_batch()
        labels = self.training.labels[places]
        self.current = images, self.targets[places]
        scores, loss = self._forward(self.network, *self.current)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        norm = get_total_norm([value.grad for value in self.learned if value.grad is not None])
        right = (scores.detach().argmax(1) == labels).float().mean()
        self.pending.append(torch.stack([loss.detach(), right, norm]))
        # Before the weights change: they are still good when this step is not.
        if look and not self._look():
            return False
        if self.recipe.clip:
            clip_grads_with_norm_(self.learned, self.recipe.clip, norm)
        self.optimizer.step()
        preparation.after_step(self.model, self.recipe)
        if self.average is not None:
            self.average.update()
        self.step += 1
        return True

    def _forward(
        self, network: Callable[[Tensor], Tensor], images: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        torch.manual_seed(seed_for(self.seed, "noise", self.step, self.world.rank))
        with torch.autocast(images.device.type, self.amp, enabled=self.amp is not None):
            scores = network(images)
        scores = scores.float()
        smoothing = self.recipe.label_smoothing
        return scores, nn.functional.cross_entropy(scores, targets, label_smoothing=smoothing)

    def _next_batch(self) -> tuple[Tensor, Tensor]:
        """This process's part of the step's images, augmented, and their places in the training set."""
        if self.stream is None:
            epoch, place = divmod(self.step, self.steps_per_epoch)
            self.stream = batches(
                self.training,
                self.batch,
                seed=self.seed,
                epoch=epoch,
                augmentation=self.augmentation,
                drop_last=True,
                start=place,
                rank=self.world.rank,
                world_size=self.world.size,
                targets=self.places,
            )
        images, places = next(self.stream)
        return arranged(images), places

    def _look(self) -> bool:
        """Take in the pending numbers. All finite: True. Else find the culprit, going back if it is past."""
        rows = torch.stack(self.pending).tolist()
        self.pending.clear()
        if all(math.isfinite(value) for row in rows for value in row):
            for row in rows:
                self.sums = [total + value for total, value in zip(self.sums, [*row, 1.0], strict=True)]
            return True
        if len(rows) > 1 and self.checkpoints is not None:
            # The weights may be spoilt since. Repeat from the last checkpoint, looking at every step.
            found = self.checkpoints.read(self.display.say) if self.world.main else None
            shared = self.world.share(None if found is None else found.pack())
            assert shared is not None  # one is written before the first step
            self.look_every = 1
            self.restore(Checkpoint.unpack(shared))
            return False
        culprit = first_non_finite(self.model, lambda: self._forward(self.model, *self.current)[1])
        self._diverged(f"{culprit} became NaN or infinite")

    def _diverged(self, what: str) -> NoReturn:
        epoch = self.step // self.steps_per_epoch + 1
        kept = "the last good checkpoint is kept; " if self.checkpoints is not None else ""
        raise TrainingDiverged(
            f"training stopped at step {self.step + 1} (epoch {epoch}): {what}; {kept}"
            f"try a new folder with a lower lr (now {self.recipe.lr:g}) or clip (now {self.recipe.clip:g})"
        )

    def _end_epoch(self) -> None:
        loss, right, norm, count = self.world.sum(self.sums)
        elapsed = time.monotonic() - self.epoch_started
        record: dict[str, Any] = {
            "epoch": self.step // self.steps_per_epoch,
            "step": self.step,
            "loss": loss / count,
            "accuracy": right / count,
            "gradient_norm": norm / count,
            "lr": max(group["lr"] for group in self.optimizer.param_groups),
            "images_per_second": (self.step - self.epoch_first_step) * self.batch / max(elapsed, 1e-9),
        }
        if self.validation is not None:
            record |= self._validate(self.validation)
        record["seconds"] = self._seconds()
        self.outcome.history.append(record)
        self.display.epoch(record, self._moment())
        if self.on_epoch is not None:
            self.on_epoch(self.outcome.history)
        self.sums, self.stream = [0.0] * 4, None
        self.epoch_started, self.epoch_first_step = time.monotonic(), self.step

    def _validate(self, dataset: ImageDataset) -> dict[str, float]:
        """Each process takes its share of the images."""
        self.world.share_buffers(self.model)
        if self.average is not None:
            self.average.swap()
        mine = dataset.subset(torch.arange(self.world.rank, len(dataset), self.world.size))
        scores = scores_of(self.model, mine.images)
        loss = nn.functional.cross_entropy(scores, mine.labels, reduction="sum")
        right = (scores.argmax(1) == mine.labels).sum()
        if self.average is not None:
            self.average.swap()
        total_loss, total_right = self.world.sum([float(loss), float(right)])
        return {
            "validation_loss": total_loss / len(dataset),
            "validation_accuracy": total_right / len(dataset),
        }

    # -- checkpoints ---------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint; all processes come here, the main one writes."""
        sums = self.world.sum(self.sums)
        self.outcome.seconds = self._seconds()
        self.saved = time.monotonic()
        if self.checkpoints is None or not self.world.main:
            return
        try:
            require_finite(self.model)
        except TrainingDiverged as error:
            self._diverged(str(error))
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        numbers: dict[str, Any] = {}
        for index, slots in self.optimizer.state_dict()["state"].items():
            for slot, value in slots.items():
                key = f"optimizer/{index}/{slot}"
                (tensors if isinstance(value, Tensor) else numbers)[key] = value
        state = {"step": self.step, "sums": sums, "optimizer": numbers, "seconds": self.outcome.seconds}
        state |= {"history": self.outcome.history, "notes": self.outcome.notes}
        state["pretraining"] = self.outcome.pretraining
        if self.average is not None:
            tensors |= {f"average/{name}": value for name, value in self.average.values.items()}
            state["average_steps"] = self.average.steps
        self.checkpoints.write(Checkpoint(tensors, state))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Become the run that wrote `checkpoint`."""
        state = checkpoint.state
        self.model.load_state_dict(_part(checkpoint.tensors, "model"))
        slots: dict[int, dict[str, Any]] = {}
        for key, value in [
            *_part(checkpoint.tensors, "optimizer").items(),
            *_part(state["optimizer"], "optimizer").items(),
        ]:
            index, slot = key.split("/", 1)
            slots.setdefault(int(index), {})[slot] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": slots, "param_groups": groups})
        if self.average is not None:
            for name, value in _part(checkpoint.tensors, "average").items():
                self.average.values[name].copy_(value)
            self.average.steps = state["average_steps"]
        self.step = state["step"]
        # The stored sums are those of all processes: one of them goes on with them.
        self.sums = list(state["sums"]) if self.world.main else [0.0] * 4
        self.pending.clear()
        self.stream = None
        self.outcome.history[:] = state["history"]
        self.outcome.notes[:] = state["notes"]
        self.outcome.pretraining = state["pretraining"]
        self.outcome.seconds = state["seconds"]
        self.begin()

    # -- figures -------------------------------------------------------------------------------------

    def _seconds(self) -> float:
        """Seconds of work so far, those before an interruption included."""
        return self.seconds_before + time.monotonic() - self.started

    def _moment(self) -> Moment:
        elapsed = max(time.monotonic() - self.started, 1e-9)
        speed = (self.step - self.first_step) / elapsed
        loss, right, _, count = self.sums
        if count == 0:  # an epoch has just ended
            last = self.outcome.history[-1]
            loss, right, count = last["loss"], last["accuracy"], 1.0
        return Moment(
            step=self.step,
            steps=self.steps,
            steps_per_epoch=self.steps_per_epoch,
            loss=loss / count,
            accuracy=right / count,
            lr=max(group["lr"] for group in self.optimizer.param_groups),
            images_per_second=speed * self.batch,
            seconds_left=(self.steps - self.step) / speed,
        )


def _part(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {
        key.removeprefix(f"{prefix}/"): value for key, value in values.items() if key.startswith(f"{prefix}/")
    }


@contextlib.contextmanager
def _signals(loop: _Loop) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) lets the step finish; the second one acts as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}

    def note(signum: int, _: Any) -> None:
        loop.signum = signum
        signal.signal(signum, before[signum])

    for signum in (signal.SIGINT, signal.SIGTERM):
        before[signum] = signal.signal(signum, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
