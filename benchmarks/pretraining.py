"""Pre-training, measured: `python benchmarks/pretraining.py PART`, one thread, time of that thread.

em         one pass of EM, 200,000 rows of 64, 64 components, against scikit-learn's diagonal GaussianMixture
ica        FastICA against Picard on whitened CIFAR-10 patches (docs/decisions/0003-ica.md)
sweep      the two-layer network pre-trained on CIFAR-10, against an epoch of training steps
structure  the channels that are chosen from CIFAR-10 images, over seeds
start      what the start does to training: 300 steps on 10,000 images, accuracy on 4,000 others
tails      tails and rank of every layer's similarities, with templates at clusters and far away

All but `em` need CIFAR-10 under $SIMNETS_DATA.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor, nn

from simnets.data import load_dataset
from simnets.models import DeepSimNet, DeepSimNetSpec, create_model, model_spec
from simnets.nn import ConvSimilarity2d
from simnets.pretrain import (
    GeneralizedGaussianMixture,
    PretrainConfig,
    Whitening,
    pretrain_model,
    pretrain_structure,
)

SHAPES: tuple[float | None, ...] = (2.0, 1.0, 1.5, None)


def seconds(run: Callable[[], object]) -> float:
    start = time.thread_time()
    run()
    return time.thread_time() - start


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    shown = Table(title=title, title_justify="left")
    for column in columns:
        shown.add_column(column, justify="right")
    for row in rows:
        shown.add_row(*(str(cell) for cell in row))
    Console(width=110).print(shown)


def em() -> None:
    """Seconds a pass: what three more iterations add to a fit, from the same start."""
    rows, d, n, rounds = 200_000, 64, 64, 5
    rng = np.random.default_rng(0)
    centres = 3 * rng.standard_normal((n, d))
    double = centres[rng.integers(0, n, rows)] + rng.standard_normal((rows, d))
    single = double.astype(np.float32)
    start = {"weights_init": np.full(n, 1 / n), "means_init": centres + 1, "tol": 0.0}

    def ours(x: np.ndarray, shape: float | None) -> Callable[[int], object]:
        return lambda k: GeneralizedGaussianMixture(n, shape, max_iter=k, min_usage=0.0, **start).fit(x)

    def theirs(x: np.ndarray) -> Callable[[int], object]:
        options = {
            "covariance_type": "diag",
            "precisions_init": np.ones((n, d)),
            "init_params": "random",
            **start,
        }
        return lambda k: GaussianMixture(n, max_iter=k, **options).fit(x)

    candidates = {
        "shape 2, float32": ours(single, 2.0),
        "shape 2, float64": ours(double, 2.0),
        "scikit-learn, float32": theirs(single),
        "scikit-learn, float64": theirs(double),
    }
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, fit in candidates.items():
            times[name].append((seconds(lambda fit=fit: fit(4)) - seconds(lambda fit=fit: fit(1))) / 3)
    slow = single[:20_000]
    for shape in (1.0, 1.5, None):
        name = f"shape {shape or 'estimated'}, a tenth of the rows"
        fit = ours(slow, shape)
        times[name] = [(seconds(lambda fit=fit: fit(3)) - seconds(lambda fit=fit: fit(1))) / 2]
    middle = {name: statistics.median(values) for name, values in times.items()}
    table(
        f"one pass of EM, {rows} × {d}, {n} components",
        ("", "ms", "× scikit-learn float32", "× scikit-learn float64"),
        (
            (
                name,
                f"{1e3 * value:.0f}",
                *(f"{middle[f'scikit-learn, float{b}'] / value:.1f}" for b in (32, 64)),
            )
            for name, value in middle.items()
        ),
    )


def cifar() -> tuple[Tensor, Tensor]:
    data = load_dataset("cifar10", "train")
    return data.images, data.labels


def ica() -> None:
    from picard import picard

    images, _ = cifar()
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(images), (40_000,), generator=generator)
    corner = torch.randint(28, (2, 40_000), generator=generator)
    windows = images.unfold(2, 5, 1).unfold(3, 5, 1)
    patches = (windows[chosen, :, corner[0], corner[1]].flatten(1) / 255.0).double()
    options = {"ortho": True, "extended": True, "whiten": False, "centering": False, "random_state": 0}

    def fast(white: np.ndarray) -> np.ndarray:
        return FastICA(whiten=False, random_state=0).fit(white).components_

    results = []
    for d in (32, 64):
        white = Whitening(d, mode="pca").fit(patches).transform(patches)
        runs: dict[str, Callable[[], np.ndarray]] = {
            "FastICA, float32": lambda white=white: fast(white.astype(np.float32)),
            "FastICA, float64": lambda white=white: fast(white),
            "Picard-O": lambda white=white: picard(white.T.copy(), max_iter=200, tol=1e-4, **options)[1],
        }
        for name, run in runs.items():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                start = time.thread_time()
                sources = white @ run().T
                taken = time.thread_time() - start
            contrast = np.log(np.cosh(sources)).mean()
            kurtosis = ((sources**4).mean(0) / (sources**2).mean(0) ** 2 - 3).mean()
            state = "no" if any("onverge" in str(w.message) for w in caught) else "yes"
            results.append((d, name, f"{taken:.1f}", state, f"{contrast:.5f}", f"{kurtosis:.2f}"))
    columns = ("dimensions", "", "seconds", "converged", "E log cosh (less is better)", "kurtosis")
    table("ICA of 40,000 whitened 5×5 patches", columns, results)


def training_steps(
    model: DeepSimNet, images: Tensor, labels: Tensor, steps: int, peak: float = 0.003
) -> None:
    """Adam, one-cycle, clipping, five times the rate for z, u and b, rows of V at unit norm."""
    parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    quick = [p for name, p in parameters if name.endswith(("templates", "raw_weights", "offsets"))]
    slow = [p for name, p in parameters if not name.endswith(("templates", "raw_weights", "offsets"))]
    groups = [{"params": slow, "lr": peak}, {"params": quick, "lr": 5 * peak}]
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [peak, 5 * peak], total_steps=steps, pct_start=0.2
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        chosen = torch.randint(len(images), (100,), generator=generator)
        loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        for block in model.layers:
            layer = block.conv_similarity
            if isinstance(layer, ConvSimilarity2d) and layer.preconditioner is not None:
                rows = layer.filters.detach().flatten(1)
                layer.filters = (rows / rows.norm(dim=1, keepdim=True)).view_as(layer.filters)


def sweep() -> None:
    images, labels = cifar()
    model = create_model("simnet2")
    assert isinstance(model, DeepSimNet)
    start = time.thread_time()
    report = pretrain_model(model, images)
    taken = time.thread_time() - start
    Console().print(report.table())
    step = seconds(lambda: training_steps(model, images, labels, 20)) / 20
    print(f"pre-training {taken:.1f} s, an epoch of 500 steps {500 * step:.1f} s, one thread, CPU time")


def structure() -> None:
    images, _ = cifar()
    spec = model_spec("simnet2", 10)
    assert isinstance(spec, DeepSimNetSpec)
    rows = []
    for seed in range(int(sys.argv[2]) if len(sys.argv) > 2 else 5):
        start = time.thread_time()
        found = pretrain_structure(images, spec, PretrainConfig(seed=seed, patches=50_000))
        cells: list[object] = [seed]
        for layer in found.report.layers:
            dimension, components = layer.dimension_choice, layer.component_choice
            assert dimension is not None
            assert components is not None
            for number, votes in ((layer.whitened, dimension.votes), (layer.templates, components.votes)):
                cells.append(f"{number}: " + ", ".join(f"{k} {v}" for k, v in votes.items()))
        rows.append([*cells, f"{time.thread_time() - start:.0f}"])
        print(rows[-1], flush=True)
    table("channels chosen from CIFAR-10", ("seed", "d, layer 1", "n", "d, layer 2", "n", "seconds"), rows)


STARTS: dict[str, PretrainConfig | None] = {
    "random": None,
    "default": PretrainConfig(precondition=True),
    "pca": PretrainConfig(precondition=True, whitening="pca"),
    "own weights u": PretrainConfig(precondition=True, weights="mixture"),
    "no preconditioner": PretrainConfig(),
    "section 5 to the letter": PretrainConfig.exact(offset_noise=0.1),
    "perplexity 30": PretrainConfig(precondition=True, perplexity=30.0),
    "offsets left alone": PretrainConfig(precondition=True, offsets=False),
}


def start() -> None:
    images, labels = cifar()
    small, known = images[:10_000], labels[:10_000]
    for name in sys.argv[2:] or STARTS:
        torch.manual_seed(0)
        model = create_model("simnet2")
        assert isinstance(model, DeepSimNet)
        pixels = small.float() / 255
        model.set_pixel_statistics(pixels.mean((0, 2, 3)), pixels.std((0, 2, 3)))
        config = STARTS[name]
        if config is not None:
            pretrain_model(model, small, config)
        model.scale = 8.0
        training_steps(model, small, known, 300)
        with torch.no_grad():
            scores = torch.cat([model(part) for part in torch.split(images[40_000:44_000], 500)])
        accuracy = (scores.argmax(1) == labels[40_000:44_000]).float().mean()
        print(f"{name:25s} {100 * accuracy:.1f} %", flush=True)


def tails() -> None:
    """Kurtosis (3 for a Gaussian) and participation ratio (Σ eigenvalues)²/Σ squares of the channels."""
    images = cifar()[0][:10_000]
    rows = []
    for energy in (None, 0.5):
        torch.manual_seed(0)
        model = create_model("simnet3_compact")
        pretrain_model(model, images, PretrainConfig(iterations=0, precondition=True, energy=energy))
        x = model.normalise(images[:500])
        for number, block in enumerate(model.layers, 1):
            with torch.no_grad():
                channels = block.similarities(x).transpose(0, 1).flatten(1).double()
                x = block(x)
            centred = channels - channels.mean(1, keepdim=True)
            kurtosis = (centred**4).mean(1) / centred.square().mean(1) ** 2
            spectrum = torch.linalg.eigvalsh(torch.cov(channels))
            rank = spectrum.sum() ** 2 / spectrum.square().sum()
            rows.append([energy or "clusters", number, f"{kurtosis.mean():.0f}", f"{rank:.2f}"])
    table("simnet3_compact at the start", ["energy", "layer", "kurtosis", "rank of 10"], rows)


PARTS = {"em": em, "ica": ica, "sweep": sweep, "structure": structure, "start": start, "tails": tails}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    PARTS[sys.argv[1]]()
