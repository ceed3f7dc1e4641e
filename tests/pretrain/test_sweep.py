"""The forward sweep on real models: the paper's identity, every kind of layer and input, failures."""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import gamma
from sklearn.datasets import load_digits
from torch import Tensor, nn

import simnets.pretrain.sweep as sweep
from simnets.errors import SimNetsError
from simnets.models import DeepSimNetSpec, LayerSpec, create_model
from simnets.nn import ConvSimilarity2d, Mex, Mex2d, MexPool2d, Similarity, Similarity2d
from simnets.pretrain import PretrainConfig, pretrain_model
from simnets.pretrain.patches import ImageSource, find_sites, sample_patches

DIGITS = torch.tensor(load_digits().images[:400] / 16, dtype=torch.float32).unsqueeze(1)
QUICK = {"patches": 4000, "iterations": 15}


def one_layer(**options) -> nn.Sequential:
    torch.manual_seed(0)
    conv = ConvSimilarity2d(1, 6, 5, 3, **options)
    return nn.Sequential(conv, Mex2d(5, 4))


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def whitened(layer: ConvSimilarity2d, images: Tensor) -> np.ndarray:
    """y of every patch, by unfolding, without the layer's own forward pass: (N, d)."""
    patches = nn.functional.unfold(images, layer.kernel_size).mT.flatten(0, 1)
    y = patches @ layer.effective_filters.flatten(1).T
    if layer.conv_bias is not None:
        y = y + layer.conv_bias
    return y.detach().numpy()


# ── the paper's identity ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("p", [1.0, 2.0, 1.5])
def test_similarity_channels_are_log_probabilities(p):
    model = one_layer(p=p, dtype=torch.float64)
    model[1].double()
    images = DIGITS[:150].double()
    report = pretrain_model(model, images, PretrainConfig.exact(patches=100_000, iterations=15))
    layer = model[0].similarity
    y = whitened(model[0], images)
    scales = layer.weights.detach().numpy() ** (-1 / p)
    prior = np.array(report.layers[0].usage)
    joint = stats.gennorm.logpdf(y[:, None], p, layer.templates.detach().numpy(), scales).sum(2) + np.log(
        prior
    )
    log_c = np.log(prior) + np.log(p / (2 * scales * gamma(1 / p))).sum(1)
    with torch.no_grad():
        similarities = model[0](images).permute(0, 2, 3, 1).reshape(-1, 5).numpy()
        scores = model(images).permute(0, 2, 3, 1).reshape(-1, 4).numpy()
    np.testing.assert_allclose(similarities, joint - log_c, rtol=1e-7, atol=1e-7)
    # the succeeding MEX has b_l = c_l in every output: exactly log P(y), but for the 1/n of the mean
    np.testing.assert_allclose(model[1].offsets.detach().numpy(), np.tile(log_c, (4, 1)), rtol=1e-9)
    log_p = np.logaddexp.reduce(joint, axis=1)
    np.testing.assert_allclose(scores, np.tile(log_p[:, None] - np.log(5), 4), rtol=1e-7)
    # and these are the patches that were seen: all of them
    assert report.layers[0].patches == len(y)
    assert report.layers[0].likelihoods[-1] == pytest.approx(log_p.mean(), rel=1e-6)
    np.testing.assert_allclose(np.cov(y.T, bias=True), np.eye(6), atol=1e-6)


@pytest.mark.parametrize("normalization", [False, True])
def test_with_a_bias_similarities_are_exact(normalization):
    model = one_layer(bias_mode="learned", normalization=normalization, dtype=torch.float64)
    images = DIGITS[:100].double()
    report = pretrain_model(model[:1], images, PretrainConfig.exact(**QUICK))
    layer = model[0].similarity
    scales = layer.weights.detach().numpy() ** -0.5
    joint = stats.gennorm.logpdf(whitened(model[0], images)[:, None], 2, layer.templates.detach(), scales)
    joint = joint.sum(2) + np.log(report.layers[0].usage)
    with torch.no_grad():
        maps = model[0](images).permute(0, 2, 3, 1).reshape(-1, 5)
    np.testing.assert_allclose(maps, joint, rtol=1e-7, atol=1e-7)


def test_without_a_conv_bias_the_templates_carry_the_mean():
    with_bias, without = one_layer(), one_layer(conv_bias_mode="none")
    for model in (with_bias, without):
        pretrain_model(model, DIGITS, PretrainConfig(**QUICK))
    torch.testing.assert_close(with_bias(DIGITS), without(DIGITS), rtol=1e-3, atol=1e-3)


# ── what makes training better ───────────────────────────────────────────────────────────────────────


def perplexity(model: nn.Sequential, images: Tensor) -> float:
    """exp of the mean entropy of softmax_l(s_l + b_l), b averaged over outputs: they differ by noise only."""
    with torch.no_grad():
        logits = model[0](images).permute(0, 2, 3, 1).flatten(0, 2) + model[1].offsets.mean(0)
    return float(torch.distributions.Categorical(logits=logits).entropy().mean().exp())


@pytest.mark.parametrize("weights", ["pooled", "mixture"])
def test_posterior_has_the_perplexity_that_was_asked_for(weights):
    model = nn.Sequential(ConvSimilarity2d(1, 8, 24, 3), Mex2d(24, 10))
    config = PretrainConfig(perplexity=6.0, offset_noise=0.0, weights=weights, **QUICK)
    report = pretrain_model(model, DIGITS, config).layers[0]
    assert perplexity(model, DIGITS) == pytest.approx(6.0, rel=0.1)
    assert report.perplexity == pytest.approx(6.0, rel=0.01)
    assert report.mixture_perplexity < 4.0


def test_layers_below_have_outputs_of_one_size():
    model = two_layers()
    pretrain_model(model, DIGITS, PretrainConfig(**QUICK))
    with torch.no_grad():
        maps = model[0](DIGITS).transpose(0, 1).flatten(1)
    assert float(maps.var(1).mean().sqrt()) == pytest.approx(1.0, rel=0.05)


def test_templates_far_away_make_similarities_nearly_linear():
    torch.manual_seed(0)
    model = nn.Sequential(
        ConvSimilarity2d(1, 6, 5, 3), MexPool2d(2), ConvSimilarity2d(5, 4, 3, 3), Mex2d(3, 2)
    )
    pretrain_model(model, DIGITS, PretrainConfig(**QUICK, energy=0.25))
    layer = model[0].similarity
    y = torch.as_tensor(whitened(model[0], DIGITS))
    u, z = layer.weights.detach(), layer.templates.detach().clone()
    linear, quadratic = y @ (2 * u * z).T, y.square() @ u.T
    assert 0.2 < float(quadratic.std(0).mean() / linear.std(0).mean()) < 0.3
    assert model[0](DIGITS).std((0, 2, 3)).mean().item() == pytest.approx(1, rel=0.1)
    # which is farther out than the clusters, in their directions
    pretrain_model(model, DIGITS, PretrainConfig(**QUICK))
    clusters = layer.templates.detach()
    assert z.norm(dim=1).min() > 1.5 * clusters.norm(dim=1).max()
    assert nn.functional.cosine_similarity(z, clusters - clusters.mean(0)).min() > 0.8


def test_pooled_weights_are_the_same_for_all_templates():
    model = one_layer()
    pretrain_model(model, DIGITS, PretrainConfig(weights="pooled", **QUICK))
    weights = model[0].similarity.weights
    torch.testing.assert_close(weights, weights[:1].expand_as(weights))
    assert weights.std(1).min() > 0


def test_constant_pixels_do_not_outweigh_the_others():
    model = nn.Sequential(nn.Flatten(), Similarity(64, 8))
    assert DIGITS.flatten(1).float().std(0).min() == 0
    pretrain_model(model, DIGITS, PretrainConfig(ridge=0.1, **QUICK))
    inverse = 1 / model[1].weights[0]
    assert inverse.mean() / inverse.min() <= 1.1 / 0.1 * 1.001


def gradient_below(config: PretrainConfig) -> float:
    model = one_layer()
    pretrain_model(model, DIGITS, config)
    scores = model(DIGITS[:32]).mean((2, 3))
    nn.functional.cross_entropy(scores, torch.arange(32) % 4).backward()
    return float(model[0].filters.grad.abs().max())


def test_noise_in_the_offsets_leaves_the_saddle():
    assert gradient_below(PretrainConfig(offset_noise=0.0, **QUICK)) < 1e-6
    assert gradient_below(PretrainConfig(**QUICK)) > 1e-4


@pytest.mark.parametrize("whitening", ["pca", "ica"])
def test_preconditioning_changes_coordinates_only(whitening):
    plain, preconditioned = one_layer(), one_layer()
    for model, precondition in ((plain, False), (preconditioned, True)):
        pretrain_model(model, DIGITS, PretrainConfig(whitening=whitening, precondition=precondition, **QUICK))
    assert plain[0].preconditioner is None
    torch.testing.assert_close(plain(DIGITS), preconditioned(DIGITS), rtol=1e-3, atol=1e-3)
    v = preconditioned[0].filters.flatten(1)
    torch.testing.assert_close(v @ v.T, torch.eye(6), atol=1e-3, rtol=0)


def loss_after_training(pretrained: bool) -> float:
    torch.manual_seed(0)
    model = create_model("simnet_mlpconv", input_shape=(1, 8, 8), whitened=16, templates=32)
    if pretrained:
        pretrain_model(model, DIGITS, PretrainConfig(precondition=True, **QUICK))
    model.scale = 8.0
    labels = torch.tensor(load_digits().target[:400])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(30):
        part = slice(100 * (step % 4), 100 * (step % 4) + 100)
        loss = nn.functional.cross_entropy(model(DIGITS[part]), labels[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(DIGITS), labels))


def test_training_is_better_with_it_than_without():
    assert loss_after_training(pretrained=True) < 0.8 * loss_after_training(pretrained=False)


# ── models, layers ───────────────────────────────────────────────────────────────────────────────────


def test_every_layer_of_a_deep_model_in_order():
    model = create_model("simnet3_compact", input_shape=(1, 8, 8), num_classes=3)
    before = state(model)
    report = pretrain_model(model, DIGITS, PretrainConfig(**QUICK))
    assert [layer.name for layer in report.layers] == [f"layers.{i}.conv_similarity" for i in range(3)]
    after = state(model)
    for name in before:
        if any(word in name for word in ("filters", "templates", "raw_weights", "conv_bias", "offsets")):
            assert not torch.equal(before[name], after[name]), name
    assert torch.isfinite(model(DIGITS)).all()


def test_border_is_filled_with_channel_means():
    model = create_model("simnet3_compact", input_shape=(1, 8, 8))
    pretrain_model(model, DIGITS[:200], PretrainConfig(**QUICK))
    x = model.normalise(DIGITS[:200])
    for block in model.layers:
        torch.testing.assert_close(block.padding_mean, x.mean((0, 2, 3)), rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            x = block(x)


def test_thresholds_are_mean_similarities():
    """A rectified layer starts with about half of its similarities above the threshold, and a border of 0."""
    options = {"rectify": (True, True, False), "bias_mode": ("learned", "learned", "none")}
    model = create_model("simnet3_compact", input_shape=(1, 8, 8), **options)
    pretrain_model(model, DIGITS, PretrainConfig(**QUICK, energy=0.5))
    x = model.normalise(DIGITS)
    for block in list(model.layers)[:2]:
        with torch.no_grad():
            maps = block.similarities(x)
            x = block(x)
        assert maps.mean((0, 2, 3)).abs().max() < 0.2 * maps.std()
        assert 0.3 < float((maps > 0).float().mean()) < 0.7
        assert float(x.min()) == 0
    assert not any(block.padding_mean.any() for block in list(model.layers)[1:])


def test_depthwise_layers_start_at_the_centre():
    """y_c is the centre of channel c's patch, standardised; linear templates are directions of clusters."""
    linear = {"kind": "linear", "weights_mode": "none", "rectify": True, "bias_mode": "learned"}
    layers = (
        LayerSpec(whitened=6, templates=8, field=3, padding=1, **linear),
        LayerSpec(whitened=8, templates=5, field=3, depthwise=True),
    )
    model = DeepSimNetSpec(input_shape=(1, 8, 8), num_classes=3, layers=layers).build()
    pretrain_model(model, DIGITS, PretrainConfig(**QUICK, ridge=0.0))
    with torch.no_grad():
        x = model.normalise(DIGITS)
        maps = model.layers[0].similarities(x)
        assert maps.std((0, 2, 3)).mean().item() == pytest.approx(1, rel=0.1)
        assert maps.mean((0, 2, 3)).abs().max() < 0.1
        y = model.layers[1].conv_similarity.whiten(model.layers[0](x))
    torch.testing.assert_close(y.mean((0, 2, 3)), torch.zeros(8), atol=0.05, rtol=0)
    torch.testing.assert_close(y.std((0, 2, 3)), torch.ones(8), atol=0.05, rtol=0)
    filters = model.layers[1].conv_similarity.filters.detach().flatten(1).clone()
    assert filters.count_nonzero() == 8
    assert (filters[:, 4] > 0).all()
    # once more, of a network that is being trained: nothing of before is left
    before = model.eval()(DIGITS)
    for block in model.layers:
        block.conv_similarity.normalize()
        block.conv_similarity.batch_norm.running_var.fill_(7.0)
    pretrain_model(model, DIGITS, PretrainConfig(**QUICK, ridge=0.0))
    assert all(block.conv_similarity.batch_norm is None for block in model.layers)
    torch.testing.assert_close(model(DIGITS), before, rtol=1e-3, atol=1e-3)
    with pytest.raises(SimNetsError, match=r"layers\.0.*all the same"):
        pretrain_model(model, torch.ones(50, 1, 8, 8), PretrainConfig(**QUICK))


def test_one_layer_at_a_time_equals_all_at_once():
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(
            nn.Sequential(
                ConvSimilarity2d(1, 6, 5, 3), MexPool2d(2), ConvSimilarity2d(5, 7, 6, 2), Mex2d(6, 3)
            )
        )
    pretrain_model(models[0], DIGITS, PretrainConfig(**QUICK))
    untouched = state(models[1][2])
    pretrain_model(models[1], DIGITS, PretrainConfig(layers=("0",), **QUICK))
    assert same(state(models[1][2]), untouched)
    pretrain_model(models[1], DIGITS, PretrainConfig(layers=("2",), **QUICK))
    assert same(state(models[0]), state(models[1]))


def test_plain_similarity_layers():
    rows = torch.cat([torch.randn(300, 4) + 5 * k for k in range(3)])
    model = nn.Sequential(Similarity(4, 3), Mex(3, 2))
    report = pretrain_model(model, rows, PretrainConfig(**QUICK))
    assert report.layers[0].whitened is None
    found = model[0].templates.mean(1).sort().values
    torch.testing.assert_close(found, torch.tensor([0.0, 5.0, 10.0]), atol=0.3, rtol=0)


@pytest.mark.parametrize("normalize_patches", [False, True])
def test_similarity_on_patches(normalize_patches):
    model = Similarity2d(1, 6, 3, padding=1, normalize_patches=normalize_patches)
    report = pretrain_model(model, DIGITS, PretrainConfig(**QUICK)).layers[0]
    assert report.patch_dimension == 9
    brightness = model.similarity.templates.mean(1).abs().max()
    assert (brightness < 0.01) == normalize_patches


def test_patches_of_equal_contrast_are_whitened_as_the_layer_sees_them():
    model = ConvSimilarity2d(1, 5, 6, 3, contrast=0.1)
    pretrain_model(model, DIGITS, PretrainConfig(**QUICK))
    y = model.whiten(DIGITS).transpose(0, 1).flatten(1)
    assert y.mean(1).abs().max() < 0.1
    torch.testing.assert_close(torch.cov(y), torch.eye(5), atol=0.15, rtol=0)


def test_linear_similarity_gets_cluster_means():
    rows = torch.cat([torch.randn(300, 3), torch.randn(300, 3) + 8])
    model = Similarity(3, 2, kind="linear")
    weights = model.weights.clone()
    pretrain_model(model, rows, PretrainConfig(**QUICK))
    assert model.templates.mean(1).sort().values.round().tolist() == [0, 8]
    assert torch.equal(model.weights, weights)


@pytest.mark.parametrize(
    ("mode", "shape", "expected"),
    [("frozen", "layer", 2.0), ("learned", "layer", 1.0), ("frozen", "estimate", 1.0), ("learned", 1.5, 1.5)],
)
def test_order_is_the_layers_or_the_datas(mode, shape, expected):
    rows = torch.distributions.Laplace(0.0, 1.0).sample((3000, 3))
    model = Similarity(3, 1, p=2.0, p_mode=mode)
    report = pretrain_model(model, rows, PretrainConfig(shape=shape, **QUICK))
    assert float(model.p.detach()) == pytest.approx(expected, rel=0.15)
    assert report.layers[0].shape == pytest.approx(float(model.p.detach()), rel=1e-6)


def test_stochastic_estimation_comes_close():
    batch, stream = one_layer(), one_layer()
    first = pretrain_model(batch, DIGITS, PretrainConfig(ridge=1e-2, **QUICK)).layers[0]
    config = PretrainConfig(ridge=1e-2, stochastic=True, batch_rows=200, **QUICK)
    second = pretrain_model(stream, DIGITS, config).layers[0]
    assert second.likelihoods[-1] > first.likelihoods[0]
    assert second.likelihoods[-1] == pytest.approx(first.likelihoods[-1], abs=1.0)


# ── images ───────────────────────────────────────────────────────────────────────────────────────────


class DataSet:
    images = (DIGITS * 255).to(torch.uint8)
    labels = None


BATCHES = list(DIGITS.split(64))
PAIRS = [(batch, "labels are not looked at") for batch in BATCHES]


@pytest.mark.parametrize(
    "images",
    [DIGITS, DIGITS.numpy(), DIGITS.double(), DataSet(), DataSet.images.numpy(), BATCHES, PAIRS,
     lambda: iter(BATCHES), iter(BATCHES)],
    ids=["tensor", "array", "double", "data set", "uint8", "batches", "pairs", "callable", "iterator"],
)  # fmt: skip
def test_every_kind_of_images(images):
    model = one_layer()
    report = pretrain_model(model, images, PretrainConfig(**QUICK)).layers[0]
    assert report.images == 400
    assert report.patches == 4000
    reference = one_layer()
    expected = pretrain_model(reference, DIGITS, PretrainConfig(**QUICK)).layers[0]
    assert report.likelihoods[-1] == pytest.approx(expected.likelihoods[-1], abs=0.5)


def sampled(images: object, *, patches: int = 100_000, max_bytes: int = 1 << 30, seed: int = 0) -> Tensor:
    model = ConvSimilarity2d(1, 2, 2, 3, stride=2, padding=1, padding_value=-1.0)
    source = ImageSource(images, 50)
    site = find_sites(model, source.first())[0]
    return sample_patches(model, site, source, patches=patches, max_bytes=max_bytes, seed=seed).rows


def test_every_position_is_reachable_with_its_padding():
    # each pixel has its own value, so the middle of a patch tells where it was cut
    image = torch.arange(49.0).view(1, 1, 7, 7)
    rows = sampled(image.expand(3000, 1, 7, 7), patches=3000)
    padded = nn.functional.pad(image, (1, 1, 1, 1), value=-1.0)
    expected = nn.functional.unfold(padded, 3, stride=2)[0].T
    found = torch.unique(rows, dim=0)
    assert torch.equal(found, torch.unique(expected, dim=0))
    counts = (rows[:, None] == expected).all(2).sum(0)
    assert counts.min() > 0.6 * counts.float().mean()


def test_sample_is_seeded_and_bounded():
    images = torch.rand(500, 1, 7, 7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(sampled(images, patches=900), sampled(images, patches=900))
    assert not torch.equal(sampled(images, patches=900), sampled(images, patches=900, seed=1))
    assert len(sampled(images, max_bytes=9 * 4 * 700)) == 700
    assert len(sampled([images, images], max_bytes=9 * 4 * 700)) == 700


def test_sample_of_a_stream_is_uniform_over_it():
    stream = [torch.full((100, 1, 7, 7), float(k)) + torch.rand(100, 1, 7, 7) / 2 for k in range(10)]
    batch = sampled(stream, patches=1000)[:, 4].floor().long()
    assert torch.bincount(batch, minlength=10).min() > 60


def test_seed_decides_everything():
    results = []
    for seed in (0, 0, 1):
        model = one_layer()
        pretrain_model(model, DIGITS, PretrainConfig(seed=seed, **QUICK))
        results.append(state(model))
    assert same(results[0], results[1])
    assert not same(results[0], results[2])


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────


def two_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(ConvSimilarity2d(1, 6, 5, 3), ConvSimilarity2d(5, 7, 6, 2), Mex2d(6, 3)).train()


def test_failed_layer_is_left_as_it_was():
    model = two_layers()
    before = state(model)
    dead = {"0.similarity.raw_weights": torch.full_like(before["0.similarity.raw_weights"], -1000.0)}
    model.load_state_dict(dead, strict=False)  # its maps are flat, so the second layer has nothing to learn
    with pytest.raises(SimNetsError, match="1: the rows are all the same"):
        pretrain_model(model, DIGITS, PretrainConfig(layers=("1",), **QUICK))
    assert same(state(model), before | dead)
    assert model.training
    assert not model[1]._forward_pre_hooks


@pytest.mark.parametrize("at", ["sample_patches", "_fit_mixture", "preconditioner"])
def test_interrupted_sweep_keeps_whole_layers_only(at, monkeypatch):
    config = PretrainConfig(precondition=True, **QUICK)
    complete, interrupted = two_layers(), two_layers()
    pretrain_model(complete, DIGITS, config)
    second = {name: value for name, value in state(interrupted).items() if not name.startswith("0.")}
    original, calls = getattr(sweep, at), []

    def interrupt(*arguments, **options):
        calls.append(at)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(sweep, at, interrupt)
    with pytest.raises(KeyboardInterrupt):
        pretrain_model(interrupted, DIGITS, config)
    after = state(interrupted)
    assert same({k: v for k, v in after.items() if not k.startswith("0.")}, second)
    assert same(state(interrupted[0]), state(complete[0]))
    assert all(module.training for module in interrupted.modules())


NAN = DIGITS.clone()
NAN[77, 0, 3, 3] = float("nan")


@pytest.mark.parametrize(
    ("images", "config", "message"),
    [
        (DIGITS[:1, :, :4, :3], {}, "0: 2 patches were sampled, fewer than the 5 templates"),
        (torch.full((50, 1, 8, 8), 0.5), {}, "0: the rows are all the same"),
        (NAN, {}, "NaN or infinite pixels"),
        (DIGITS, {"tolerance": 1e-13}, "0: tolerance=1e-13 was not reached in 15 iterations of EM"),
        (DIGITS, {"layers": ("7",)}, "layers: 7 not in the model; its similarity layers are 0"),
        ([], {}, "gave no batch"),
        (["no image"], {}, "a batch is str"),
        (3.5, {}, "images are of type float"),
        (DIGITS[:0], {}, r"images have shape \(0, 1, 8, 8\)"),
    ],
)
def test_bad_input_is_one_clear_line(images, config, message):
    model = one_layer()
    before = state(model)
    with pytest.raises(SimNetsError, match=message) as caught:
        pretrain_model(model, images, PretrainConfig(**(QUICK | config)))
    assert "\n" not in str(caught.value)
    assert same(state(model), before)


def test_more_whitened_channels_than_a_patch_has():
    with pytest.raises(SimNetsError, match="0: the layer whitens patches of 9 coordinates to 12"):
        pretrain_model(nn.Sequential(ConvSimilarity2d(1, 12, 5, 3)), DIGITS, PretrainConfig(**QUICK))


def test_a_one_shot_iterator_serves_one_layer_only():
    with pytest.raises(SimNetsError, match="iterated only once, but 2 layers"):
        pretrain_model(two_layers(), iter(BATCHES), PretrainConfig(**QUICK))


def test_a_model_without_similarities():
    with pytest.raises(SimNetsError, match="no similarity layers"):
        pretrain_model(nn.Conv2d(1, 2, 3), DIGITS)


@pytest.mark.parametrize(
    "options",
    [{"whitening": "lda"}, {"weights": "none"}, {"patches": 0}, {"ridge": -0.1}, {"perplexity": 1.0},
     {"tolerance": 0.0}, {"shape": 0.0}, {"shape": "auto"}, {"offset_noise": float("nan")}],
)  # fmt: skip
def test_config_refuses_nonsense(options):
    with pytest.raises(SimNetsError, match=next(iter(options))):
        PretrainConfig(**options)
