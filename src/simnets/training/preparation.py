"""What SimNets need around the loop: their start, their learning rates, their constraint, their folding.

The paper's parametrisation trains badly (docs/training_notes.md). Everything here changes coordinates or
starting values only: `finish` folds it away, and the network on disk is the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from simnets.data import ImageDataset
from simnets.models import DeepSimNet, SimNetMLP
from simnets.models.normalizable_conv import NormalizableConv2d
from simnets.models.simnet import SimNet
from simnets.nn import ConvSimilarity2d, Mex, Mex2d, Similarity
from simnets.pretrain import PretrainConfig, PretrainReport, pretrain_model
from simnets.training.recipe import Recipe

_LABELLED = 5_000  # images whose labels the starting offsets are counted from
_SEARCHED = 1_000  # images on which λ is searched
_LEAST_CURVATURE = 1e-3  # u, as a share of |2u∘z|: no template is farther than 500
_APART = 4.0  # log of how much more a template counts in its own class than in others; 2 and 8 are as good
_RIDGE, _SPREAD = 0.1, 0.5  # of the discriminants: what steadies S, and how far a class's templates differ
_LEAST_DEVIATION = 1e-3  # of a whitened channel, which should deviate by 1
_LEAST_SHARE = 1e-3  # of the mean: a template that a class never meets does not start at −∞


def prepare(
    model: nn.Module,
    dataset: ImageDataset,
    recipe: Recipe,
    *,
    seed: int,
    report: Callable[[str], None],
) -> PretrainReport | None:
    """Set the starting values of a SimNet in place, once before the first step; others keep theirs.

    Returns what pre-training found, if there was any.
    """
    if not isinstance(model, SimNet):
        if recipe.normalize:
            _normalize(model)
        return None
    outcome = None
    if recipe.pretrain:
        options: dict[str, Any] = {"whitening": recipe.whitening, "precondition": recipe.precondition}
        options |= {"iterations": recipe.em, "energy": recipe.energy or None}
        if recipe.perplexity:
            config = PretrainConfig(**options, perplexity=recipe.perplexity, seed=seed)
        else:
            config = PretrainConfig.exact(**options, seed=seed)
        # pre-training shares the images among the processes itself and adds up what they find
        outcome = pretrain_model(model, dataset.images, config)
        report(f"pre-trained {len(outcome.layers)} layers without labels in {outcome.seconds:.0f} s")
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed))
    classes = recipe.label_start and recipe.class_energy > 0 and _can_share(model)
    if recipe.label_start:
        sample = dataset.subset(order[:_LABELLED])
        if classes:
            assert isinstance(model, DeepSimNet)
            start_classes(model, sample, recipe.class_energy, seed=seed)
        else:
            start_offsets(model, sample)
        what = "templates of classes" if classes else "offsets"
        report(f"{what} started from the labels of {len(sample)} images")
    if recipe.learn_scale:
        sample = dataset.subset(order[:_SEARCHED])
        report(f"scale of the scores started at λ = {start_scale(model, sample):g}")
    if isinstance(model, DeepSimNet):
        model.to_natural(hidden=recipe.energy > 0, last=classes)
    if recipe.normalize:
        _normalize(model)
    return outcome


def _normalize(model: nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, ConvSimilarity2d | NormalizableConv2d):
            layer.normalize()


@torch.no_grad()
def start_offsets(model: SimNet, sample: ImageDataset) -> None:
    """b_rl = b_l + (1/β)·log(P(l | r) / mean_r P(l | r)), P(l | r) the soft share of template l in class r.

    With equal offsets b_l in all classes every class has the same score and the gradient into the
    similarities is exactly zero. Counting which templates a class meets, by their posterior
    exp(β·(s_l + b_l)) / Σ_l exp(β·(s_l + b_l)), sets the classes apart: with the b_l = c_l of section 5,
    β = 1 and equally many images a class, the score of class r becomes log P(y | r) of a mixture whose
    components are shared by the classes.
    """
    classify = model.classify
    assert isinstance(classify, Mex | Mex2d)
    beta = float(classify.beta)
    device = model.pixel_mean.device
    shared = classify.offsets.mean(0)
    counts = torch.zeros(model.spec.num_classes, len(shared), device=device)
    images = torch.zeros(model.spec.num_classes, 1, device=device)
    for start in range(0, len(sample), 500):
        labels = sample.labels[start : start + 500].to(device)
        similarities = _similarities(model, sample.images[start : start + 500].to(device))
        counts.index_add_(0, labels, torch.softmax(beta * (similarities + shared.view(-1, 1)), 1).mean(2))
        images.index_add_(0, labels, torch.ones(len(labels), 1, device=device))
    shares = counts / images.clamp_min(1)
    ratio = shares / shares.mean(0).clamp_min(torch.finfo(shares.dtype).tiny)
    classify.offsets = shared + ratio.clamp_min(_LEAST_SHARE).log() / beta


def _can_share(model: SimNet) -> bool:
    """Whether every class can have templates of its own: two, so that MEX has something to choose from."""
    if not isinstance(model, DeepSimNet) or not 0 < float(model.classify.beta) < math.inf:
        return False
    last = model.spec.layers[-1]
    return model.blocks[-1].natural and not last.rectify and last.templates >= 2 * model.spec.num_classes


@torch.no_grad()
def start_classes(model: DeepSimNet, sample: ImageDataset, energy: float, *, seed: int) -> None:
    """Make each template of the last layer one of a class: offsets b_rl are 4/β lower in all other classes.

    The score of class r is then about MEX_β of its own templates' similarities. They start as linear
    discriminants, 2u∘z_l = v_l with v_l near S⁻¹·(m_r − m): m_r and S are mean and covariance, within the
    class r of l, of the whitened channels y averaged over an image, for scores are averages. v·y deviates by
    1/β, and the quadratic term u·|y|², with u equal for all, by `energy` times that. Templates that all
    classes share, at clusters of patches, can tell a class by which of them a patch is near, a bag of words;
    these add up evidence.
    """
    classify, block = model.classify, model.blocks[-1]
    beta, device = float(classify.beta), model.pixel_mean.device
    layer = block.conv_similarity
    assert isinstance(layer, ConvSimilarity2d)
    maps = []
    for images in torch.split(sample.images, 500):
        x = model.before_last(model.normalise(images.to(device)))
        maps.append(layer.whiten(block.pad(x)).flatten(2))
    y, labels, k = torch.cat(maps).to("cpu", torch.float64), sample.labels.cpu(), model.spec.num_classes
    n, d = layer.similarity.templates.shape
    y_mean, y_deviation = y.mean((0, 2)), y.var((0, 2), correction=0).sqrt()
    y_deviation = y_deviation.clamp_min(_LEAST_DEVIATION)  # a channel may be the same for all patches
    image = y.mean(2)
    one_hot = nn.functional.one_hot(labels, k).to(image)
    means = (one_hot.T @ image) / one_hot.sum(0).clamp_min(1)[:, None]
    centred = image - means[labels]
    within = centred.T @ centred / len(centred)
    ridge = (_RIDGE * within.diagonal().mean()).clamp_min(_LEAST_DEVIATION**2)
    v = torch.linalg.solve(within + ridge * torch.eye(d).to(within), (means - means.mean(0)).T).T
    own = torch.arange(n) % k
    generator = torch.Generator().manual_seed(seed)
    apart = torch.randn(n, d, generator=generator, dtype=v.dtype) * _SPREAD / d**0.5
    v = nn.functional.normalize(v)[own] + apart
    v = v / (beta * (v * y_deviation).norm(dim=1, keepdim=True))
    u = (energy / (beta * (2 * d) ** 0.5 * y_deviation.square())).expand(n, d)
    z = v / (2 * u)
    layer.similarity.templates, layer.similarity.weights = z, u
    typical = -(u * ((y_mean - z).square() + y_deviation.square())).sum(1)
    other = own != torch.arange(k)[:, None]
    classify.offsets = -typical - other * (_APART / beta)


@torch.no_grad()
def start_scale(model: SimNet, sample: ImageDataset) -> float:
    """Set λ to the power of √2 with the least loss on `sample`; it is learned afterwards."""
    device = model.pixel_mean.device
    model.scale = 1.0
    model.eval()
    scores = torch.cat([model(images.to(device)) for images in torch.split(sample.images, 500)])
    labels = sample.labels.to(device)
    model.train()
    candidates = [2 ** (power / 2) for power in range(-4, 21)]
    best = min(candidates, key=lambda scale: float(nn.functional.cross_entropy(scale * scores, labels)))
    model.scale = best
    return best


def _similarities(model: SimNet, images: Tensor) -> Tensor:
    """What the classification MEX sees, (N, n, positions)."""
    x = model.normalise(images)
    if isinstance(model, DeepSimNet):
        return model.similarities(x).flatten(2)
    assert isinstance(model, SimNetMLP)
    similarities: Tensor = model.similarity(x.flatten(1))
    return similarities.unsqueeze(-1)


def parameter_groups(model: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """The learned parameters in groups, each with its "lr" at its peak and its "weight_decay".

    Recipe `paper` has one rate and one decay for all. Otherwise what is learned in logarithms, and the
    templates, whose scale the whitening has fixed, are not pulled towards 0.
    """
    factors: dict[str, float] = {}
    if isinstance(model, SimNet):
        factors = {"templates": recipe.template_lr, "raw_weights": recipe.weight_lr}
        factors |= {"offsets": recipe.offset_lr, "log_scale": recipe.offset_lr}
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, value in model.named_parameters():
        if value.requires_grad:
            orthogonal = recipe.optimizer == "muon" and _maps_features(model, name)
            rate = recipe.filter_lr if orthogonal else recipe.lr
            factor = factors.get(name.rsplit(".", 1)[-1], 1.0)
            groups.setdefault((rate * factor, orthogonal), []).append(value)
    return [
        {"params": values, "lr": rate} | ({"orthogonal": True} if orthogonal else {})
        for (rate, orthogonal), values in groups.items()
    ]


def _maps_features(model: nn.Module, name: str) -> bool:
    """Muon is for matrices: filters, templates, weights and offsets; not for a ConvNet's dense classifier."""
    module, _, last = name.rpartition(".")
    owner = model.get_submodule(module)
    if isinstance(owner, ConvSimilarity2d | nn.Conv2d):
        return last in ("filters", "weight")
    return last in ("templates", "raw_weights", "offsets") and isinstance(owner, Similarity | Mex | Mex2d)


@torch.no_grad()
def after_step(model: nn.Module, recipe: Recipe) -> None:
    """Bring each row of V back to unit norm, in layers that learn W = V·A or normalise W·x, and each v_l to
    its first norm.

    Nothing is lost, for the scale of a whitened channel can live in u and z, and that of a template's channel
    in the next layer's filters. Left free, the outputs grow, the posterior over templates hardens, and
    templates die. u stays so large that z = v/2u, and with it the rounding of u·(y − z)², stays small.
    """
    if not recipe.project or not isinstance(model, SimNet):
        return
    for layer in model.modules():
        if not isinstance(layer, ConvSimilarity2d):
            continue
        if layer.preconditioner is not None or layer.batch_norm is not None:
            _project(layer.filters.flatten(1), 1.0)
        if layer.slope_norms is not None:
            _project(layer.similarity.templates, layer.slope_norms[:, None])
            least = (_LEAST_CURVATURE * layer.slope_norms[:, None]).log()
            assert layer.similarity.raw_weights is not None
            layer.similarity.raw_weights.clamp_(min=least)


def _project(rows: Tensor, norms: Tensor | float) -> None:
    rows.mul_(norms / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny))


def finish(model: nn.Module, recipe: Recipe) -> None:
    """Fold what only training needs into the paper's parameters."""
    if isinstance(model, SimNet):
        model.fold()
    for layer in model.modules():
        if isinstance(layer, NormalizableConv2d):
            layer.fold()
