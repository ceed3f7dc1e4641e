"""The forward sweep: layer by layer, whitening filters, then templates, weights and order (section 5)."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from simnets.errors import SimNetsError
from simnets.nn import ConvSimilarity2d
from simnets.pretrain.config import PretrainConfig
from simnets.pretrain.density import MixtureDensity
from simnets.pretrain.distributed import all_min, all_sum, first_keys
from simnets.pretrain.mixture import GeneralizedGaussianMixture
from simnets.pretrain.patches import Images, ImageSource, Sample, Site, find_sites, sample_patches
from simnets.pretrain.report import LayerReport, PretrainReport
from simnets.pretrain.rows import chunks
from simnets.pretrain.whitening import Projection, Standardization, Whitening, kurtosis, preconditioner

# of stochastic EM
_EPOCHS = 3
# gain in mean log-likelihood below which nothing is left to be had for a start of training
_TOLERANCE = 1e-3
_SCALE_ROWS = 10_000


def pretrain_model(
    model: nn.Module,
    images: Images,
    config: PretrainConfig | None = None,
    *,
    progress: Callable[[str], None] | None = None,
) -> PretrainReport:
    """Sets the starting values of a model's similarity layers from unlabelled images, in place (section 5).

    Layer by layer, in the order of the forward pass: patches of the layer's input are sampled; W and the
    convolution's bias are set so that y = W·(x − mean) is white; a generalized Gaussian mixture is fitted to
    y and gives z = μ, u = α^−β, p = β, and b_l = c_l where a bias or a MEX follows. Works for every model
    that consists of the layers of `simnets.nn`. If a layer fails, or the sweep is interrupted, that layer and
    those after it stay as they were.

    images: tensor or array (N, C, H, W), uint8 or floating point; a data set; an iterable of batches that can
        be iterated anew for every layer, or a callable that returns one.

    >>> import simnets
    >>> model = simnets.create_model("simnet_mlpconv", input_shape=(1, 8, 8), whitened=8, templates=4)
    >>> report = pretrain_model(model, torch.rand(200, 1, 8, 8))
    >>> report.layers[0].templates
    4
    """
    config = config or PretrainConfig()
    started = time.perf_counter()
    source = ImageSource(images, config.batch_size)
    sites = find_sites(model, source.first())
    if config.layers is not None:
        unknown = sorted(set(config.layers) - {site.name for site in sites})
        if unknown:
            known = ", ".join(site.name for site in sites) or "none"
            raise SimNetsError(
                f"layers: {', '.join(unknown)} not in the model; its similarity layers are {known}"
            )
    indexed = [
        (index, site)
        for index, site in enumerate(sites)
        if config.layers is None or site.name in config.layers
    ]
    if not indexed:
        raise SimNetsError("the model has no similarity layers, so there is nothing to pre-train")
    if source.once and len(indexed) > 1:
        raise SimNetsError(
            f"images can be iterated only once, but {len(indexed)} layers need a pass each; give a callable "
            "that returns a new iterator, an iterable that can be restarted, or one layer"
        )
    reports = []
    for index, site in indexed:
        if progress is not None:
            progress(f"pre-training {site.name}")
        try:
            reports.append(_pretrain_layer(model, site, source, config, config.seed + 1000 * index))
        except SimNetsError as error:
            raise SimNetsError(f"{site.name}: {error}") from None
    return PretrainReport(tuple(reports), time.perf_counter() - started)


def _pretrain_layer(
    model: nn.Module, site: Site, source: ImageSource, config: PretrainConfig, seed: int
) -> LayerReport:
    clock = [time.perf_counter()]
    sample = sample_patches(
        model, site, source, patches=config.patches, max_bytes=config.max_bytes, seed=seed
    )
    if sample.total < site.similarity.out_features:
        raise SimNetsError(
            f"{sample.total} patches were sampled, fewer than the {site.similarity.out_features} templates; "
            "give more images"
        )
    clock.append(time.perf_counter())
    whitening = None
    rows = sample.rows
    if isinstance(site.layer, ConvSimilarity2d):
        whitening = _whiten(site.layer, sample, config, seed)
        rows = whitening.project(rows)
    clock.append(time.perf_counter())
    mixture = _fit_mixture(site, rows, sample, config, seed)
    estimate = _estimate(site, rows, sample, mixture.density_, config)
    clock.append(time.perf_counter())
    _apply(site, sample, whitening, estimate, config, seed)
    seconds = dict(zip(("sampling", "whitening", "mixture"), np.diff(clock).tolist(), strict=True))
    return _report(site, sample, rows, whitening, mixture, estimate, seconds)


def _report(
    site: Site,
    sample: Sample,
    rows: Tensor,
    whitening: Projection | None,
    mixture: GeneralizedGaussianMixture,
    estimate: Estimate,
    seconds: dict[str, float],
) -> LayerReport:
    return LayerReport(
        name=site.name,
        kind=type(site.layer).__name__,
        patch_shape=site.patch_shape,
        patches=sample.total,
        images=sample.images,
        patch_dimension=site.width,
        whitened=None if whitening is None else len(whitening.components_),
        templates=site.similarity.out_features,
        explained_variance=1.0 if whitening is None else whitening.explained_variance_ratio_,
        eigenvalues=[] if whitening is None else whitening.eigenvalues_.tolist(),
        kurtosis=(kurtosis(rows) if whitening is None else whitening.kurtosis_).tolist(),
        ica_converged=whitening is None or whitening.converged_,
        shape=estimate.shape,
        likelihoods=mixture.lower_bounds_,
        usage=mixture.weights_.tolist(),
        mixture_perplexity=estimate.mixture_perplexity,
        perplexity=estimate.perplexity,
        factor=estimate.factor,
        seconds=seconds,
        filters=None if whitening is None else whitening.components_,
        templates_as_patches=(
            mixture.means_ if whitening is None else whitening.inverse_transform(mixture.means_)
        ),
    )


def _whiten(layer: ConvSimilarity2d, sample: Sample, config: PretrainConfig, seed: int) -> Projection:
    d, m = layer.whitened_channels, sample.rows.shape[1]
    if layer.depthwise:
        return Standardization(d, ridge=config.ridge).fit(sample.rows)
    if d > m:
        raise SimNetsError(
            f"the layer whitens patches of {m} coordinates to {d}; expected at most {m} channels"
        )
    whitening = Whitening(d, mode=config.whitening, ridge=config.ridge, random_state=seed)
    if not config.stochastic:
        return whitening.fit(sample.rows, keys=sample.keys)
    for part in _mini_batches(sample, max(config.batch_rows, 2 * m)):
        whitening.partial_fit(sample.rows[part])
    return whitening


def _fit_mixture(
    site: Site, rows: Tensor, sample: Sample, config: PretrainConfig, seed: int
) -> GeneralizedGaussianMixture:
    layer = site.similarity
    n = layer.out_features
    shape: float | None
    if layer.kind == "linear":
        shape = 2.0  # the linear form has no density; its templates are the means of clusters
    elif config.shape == "layer":
        shape = None if isinstance(layer.order, Tensor) else float(layer.order)
    else:
        shape = None if config.shape == "estimate" else float(config.shape)
    tolerance = _TOLERANCE if config.tolerance is None else config.tolerance
    mixture = GeneralizedGaussianMixture(
        n, shape, max_iter=config.iterations, tol=tolerance, random_state=seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if not config.stochastic:
            mixture.fit(rows, keys=sample.keys)
        for _ in range(_EPOCHS if config.stochastic else 0):
            for part in _mini_batches(sample, max(config.batch_rows, 10 * n)):
                mixture.partial_fit(rows[part], keys=sample.keys[part])
    if config.tolerance is not None and not mixture.converged_:
        gain = mixture.lower_bounds_[-1] - mixture.lower_bounds_[-2]
        raise SimNetsError(
            f"tolerance={config.tolerance:g} was not reached in {config.iterations} iterations of EM (last "
            f"gain {gain:.3g}); raise iterations or tolerance"
        )
    return mixture


def _mini_batches(sample: Sample, size: int) -> Iterator[Tensor]:
    """Indices of random parts of about `size` rows: those whose keys lie in an interval, on any process."""
    count = max(1, sample.total // size)
    last = -sample.keys.max().reshape(1)
    all_min(last)
    part = (sample.keys / -last * count).long().clamp_max(count - 1)
    for index in range(count):
        yield (part == index).nonzero().squeeze(1)


@dataclass(frozen=True)
class Estimate:
    """What a layer is given: the mixture's means, weights u and constants c, times a factor for softness.

    typical: each template's mean similarity, the threshold where similarities are rectified.
    """

    means: Tensor
    weights: Tensor
    constants: Tensor
    typical: Tensor
    shape: float
    factor: float
    perplexity: float
    mixture_perplexity: float


def _estimate(
    site: Site, rows: Tensor, sample: Sample, density: MixtureDensity, config: PretrainConfig
) -> Estimate:
    """Pools the weights and finds the factor, where these are asked for."""
    if config.weights == "pooled":
        # α^β is a mean over the component's patches; the mean over all patches weighs it by λ
        power = density.weights @ density.scales**density.shape
        # a coordinate that hardly varies (a pixel that is always black) would outweigh all others
        power = power + config.ridge * power.mean()
        scales = (power ** (1 / density.shape)).expand_as(density.scales)
        density = MixtureDensity(density.weights, density.means, scales, density.shape)
    layer, beta = site.similarity, 1.0
    if config.energy is not None and site.mex is None and density.shape == 2.0 and layer.kind == "lp":
        density = _far_away(density, rows[first_keys(sample.keys, _SCALE_ROWS)], config.energy)
    if site.mex is not None and 0 < float(site.mex.beta) < math.inf:
        beta = float(site.mex.beta)
    few = rows[first_keys(sample.keys, _SCALE_ROWS)]
    constants = density.constants.to(few.dtype)
    joint = torch.cat([density.log_joint(part) for part in chunks(few, density.means.numel())])
    logits = beta * (joint if config.offsets else joint - constants)
    factor = 1.0
    means, typical = density.means, _mean(joint - constants)
    if layer.kind == "linear" and site.block is not None and site.block.rectify is not None:
        means = _directions(density, few)
        typical = _mean(few @ means.T.to(few))
    if layer.kind == "lp" and layer.weights is not None:
        if site.mex is None and config.unit_output:
            factor = 1 / _deviation(joint - constants)
        elif site.mex is not None and config.perplexity is not None and layer.out_features > 1:
            factor = _softening(logits, min(config.perplexity, layer.out_features / 2))
    return Estimate(
        means,
        density.similarity_weights * factor,
        density.constants * factor,
        typical * factor,
        density.shape,
        factor,
        _perplexity(logits, factor),
        _perplexity(logits, 1.0),
    )


def _far_away(density: MixtureDensity, rows: Tensor, energy: float) -> MixtureDensity:
    """Means in the same directions, and equal scales, so that 2uz·y deviates by 1 and u·|y|² by `energy`."""
    v = _directions(density, rows)
    u = energy / _deviation(rows.square().sum(1, keepdim=True))
    scales = torch.full_like(density.scales, u**-0.5)
    return MixtureDensity(density.weights, v / (2 * u), scales, density.shape)


def _directions(density: MixtureDensity, rows: Tensor) -> Tensor:
    """The directions in which the components lie, as long as v·y deviates by 1."""
    v: Tensor = density.means - density.weights @ density.means
    v = v / v.norm(dim=1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
    return v / _deviation(rows @ v.T.to(rows))


def _deviation(similarities: Tensor) -> float:
    """Standard deviation about the mean of each channel, over the rows of all processes."""
    centred = similarities.double() - _mean(similarities)
    return math.sqrt(max(float(_mean(centred.square()).mean()), 1e-24))


def _mean(rows: Tensor) -> Tensor:
    """Of each channel, over the rows of all processes."""
    total = rows.sum(0, dtype=torch.float64)
    sums = torch.stack([total, torch.full_like(total, len(rows))])
    all_sum(sums)
    return sums[0] / sums[1]


def _perplexity(logits: Tensor, factor: float) -> float:
    """exp of the mean entropy of softmax(factor·logits), over the rows of all processes."""
    log = torch.log_softmax(factor * logits, 1)
    sums = torch.stack([-(log.exp() * log).sum(dtype=torch.float64), log.new_tensor(len(log)).double()])
    all_sum(sums)
    return math.exp(float(sums[0] / sums[1]))


def _softening(logits: Tensor, perplexity: float) -> float:
    """The factor at which the posterior has this perplexity, which falls as the factor grows: bisection."""
    low, high = -20.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        if _perplexity(logits, math.exp(middle)) > perplexity:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


def _apply(
    site: Site,
    sample: Sample,
    whitening: Projection | None,
    estimate: Estimate,
    config: PretrainConfig,
    seed: int,
) -> None:
    """Writes the estimates into the layer, all of them or none."""
    modules = [module for module in (site.block or site.layer, site.mex) if module is not None]
    before = [{name: value.clone() for name, value in module.state_dict().items()} for module in modules]
    try:
        _write(site, sample, whitening, estimate, config, seed)
    except BaseException:
        for module, state in zip(modules, before, strict=True):
            module.load_state_dict(state)
        raise


@torch.no_grad()
def _write(
    site: Site,
    sample: Sample,
    whitening: Projection | None,
    estimate: Estimate,
    config: PretrainConfig,
    seed: int,
) -> None:
    layer, similarity, means = site.layer, site.similarity, estimate.means
    if site.block is not None and sample.channel_mean is not None:
        site.block.padding_mean.copy_(sample.channel_mean)
    if isinstance(layer, ConvSimilarity2d) and whitening is not None:
        filters = torch.as_tensor(whitening.components_)
        shift = torch.as_tensor(whitening.components_ @ whitening.mean_)
        layer.slope_norms = None  # z is about to be set
        layer.fold()  # what it was learned in, or normalised by, belongs to the filters that go
        if layer.depthwise:  # rows of W that are 0 in all channels but their own
            d = len(filters)
            filters = filters.view(d, d, -1)[range(d), range(d)]
        layer.filters = filters.view(layer.filters.shape)
        if layer.conv_bias is not None:
            layer.conv_bias = -shift
        else:
            means = means + shift.to(means)  # without a bias y is not centred, and neither are its clusters
        if config.precondition and not layer.depthwise:
            layer.precondition(preconditioner(torch.as_tensor(whitening.covariance_), config.ridge))
    similarity.templates = means
    constants = estimate.constants
    if similarity.kind == "lp":
        if similarity.weights is not None:
            similarity.weights = estimate.weights
        if float(similarity.p) != estimate.shape:
            similarity.p = estimate.shape
        if similarity.normalization:
            constants = constants - similarity.log_density_constants().sum(1).to(constants)
    if site.block is not None and site.block.rectify is not None:
        similarity.bias = -estimate.typical
    elif similarity.kind == "lp" and config.offsets:
        _write_offsets(site, constants, config.offset_noise, seed)


def _write_offsets(site: Site, constants: Tensor, noise: float, seed: int) -> None:
    """b_l = c_l in the similarity's own bias, else in every output of the succeeding MEX."""
    if site.similarity.bias is not None:
        site.similarity.bias = constants
        constants = torch.zeros_like(constants)
    if site.mex is not None:
        generator = torch.Generator().manual_seed(seed)
        spread = torch.randn(site.mex.offsets.shape, generator=generator, dtype=torch.float64) * noise
        site.mex.offsets = constants.cpu() + spread
