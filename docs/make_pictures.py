"""The pictures of these pages: `python docs/make_pictures.py` writes them to docs/images.

mex.png               MEX from minimum through average to maximum
similarity.png        points of equal similarity to a template, for orders p and weights u
how_it_works.png      a trained SimNet MLP on two coordinates: similarities, class scores, decision
decision_regions.png  what SimNet MLP, an SVM and an MLP learn from the same points

What the pages say in numbers about the last two stands in the pictures' titles.
"""

from __future__ import annotations

import io
import math
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import make_blobs, make_circles, make_moons
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC

import simnets
from simnets import SimNetClassifier

IMAGES = Path(__file__).parent / "images"
COLOURS = ("#0b6e4f", "#b3541e")
PALE = ListedColormap(["#cfe5dc", "#f3ddcd"])
GREENS = ("#ffffff", "#e3f1e8", "#b8dcc8", "#7fbf9c", "#3f9470")
Points = tuple[np.ndarray, np.ndarray]

matplotlib.rcParams.update({"font.size": 9, "axes.titlesize": 9, "figure.dpi": 110})


def mex_picture() -> Figure:
    """Left: MEX of three numbers as β runs. Right: where MEX_β{x₁, x₂} = 0, from x₂ = −x₁ to the maximum."""
    figure = Figure(figsize=(8.2, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    values = torch.tensor([0.0, 1.0, 3.0])
    betas = np.linspace(-12, 12, 481)
    left.plot(betas, [simnets.mex(values, float(beta)) for beta in betas], color=COLOURS[0], linewidth=2)
    for value, name, side in ((0, "minimum", "right"), (4 / 3, "average", "right"), (3, "maximum", "left")):
        left.axhline(value, color="grey", linewidth=0.8, linestyle=":")
        place = (11.8 if side == "right" else -11.8, value)
        left.annotate(name, place, (0, 3), textcoords="offset points", color="dimgrey", ha=side)
    left.plot(0, 4 / 3, "o", color=COLOURS[1])
    left.set(xlabel="β", ylabel="MEX$_β${0, 1, 3}", ylim=(-0.25, 3.4), title="one number for three, by β")

    axis = torch.linspace(-2, 2, 161)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=-1)
    betas = (-math.inf, -3.0, -1.0, 0.0, 1.0, 3.0, math.inf)
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(betas)))
    for beta, colour in zip(betas, colours, strict=True):
        right.contour(axis, axis, simnets.mex(grid, beta), levels=[0.0], colors=[colour])
        right.plot(
            [], [], color=colour, label=str(beta).replace("-", "−").replace("inf", "∞").replace(".0", "")
        )
    right.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal", title="where MEX$_β${$x_1$, $x_2$} = 0")
    right.legend(title="β", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def similarity_picture() -> Figure:
    """Points of equal similarity to z = 0; below with weights u."""
    figure = Figure(figsize=(8.2, 3.7), layout="constrained")
    orders = (0.5, 1.0, 1.5, 2.0, 4.0)
    rows = figure.subplots(2, len(orders), sharex=True, sharey=True)
    axis = torch.linspace(-2, 2, 201)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=-1)
    z = torch.zeros(1, 2)
    for axes, u in zip(rows, ([1.0, 1.0], [1.0, 4.0]), strict=True):
        for panel, p in zip(axes, orders, strict=True):
            s = simnets.similarity(grid, z, torch.tensor([u]), p)[..., 0]
            panel.contourf(axis, axis, s, levels=[-99, -4, -3, -2, -1, 0], colors=GREENS)
            panel.contour(
                axis, axis, s, levels=[-4, -3, -2, -1], colors="dimgrey", linewidths=0.6, linestyles="-"
            )
            panel.plot(0, 0, "k+", markersize=5)
            panel.set(aspect="equal", xticks=[-2, 0, 2], yticks=[-2, 0, 2])
        axes[0].set_ylabel("u = (1, 1)" if u[1] == 1 else "u = (1, 4)")
    for panel, p in zip(rows[0], orders, strict=True):
        panel.set_title(f"p = {p:g}")
    return figure


def toy_data(name: str, count: int, seed: int) -> Points:
    """Points in the plane, about 0 and of deviation about 1, with labels 0 and 1."""
    if name == "moons":
        x, y = make_moons(count, noise=0.25, random_state=seed)
    elif name == "circles":
        x, y = make_circles(count, noise=0.12, factor=0.45, random_state=seed)
    else:
        centres = [[-1, -1], [1, 1], [-1, 1], [1, -1]]
        x, y = make_blobs(count, centers=centres, cluster_std=0.45, random_state=seed)
        y = y // 2
    return (x - np.array([0.5, 0.25]) * (name == "moons")) * 1.4, y


def fit_simnet(points: Points) -> SimNetClassifier:
    """RBF kernels, a width for each template and coordinate."""
    return SimNetClassifier(n_templates=8, p=2.0, random_state=0).fit(*points)


def plane(reach: float = 3.0, count: int = 161) -> tuple[np.ndarray, np.ndarray]:
    """The coordinates of an axis, and the points of a square grid of them."""
    axis = np.linspace(-reach, reach, count)
    return axis, np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)


def draw_points(panel: Axes, points: Points) -> None:
    for label, colour in enumerate(COLOURS):
        panel.plot(*points[0][points[1] == label].T, ".", color=colour, markersize=3.5)
    panel.set(aspect="equal", xticks=[], yticks=[], xlim=(-3, 3), ylim=(-3, 3))


def draw_regions(panel: Axes, points: Points, difference: np.ndarray) -> None:
    axis, _ = plane()
    field = difference.reshape(len(axis), -1)
    panel.contourf(axis, axis, field > 0, levels=[-0.5, 0.5, 1.5], cmap=PALE)
    panel.contour(axis, axis, field, levels=[0], colors="black", linewidths=1)
    draw_points(panel, points)


def how_it_works_picture() -> Figure:
    """Similarity, MEX and decision, in the plane."""
    points, test = toy_data("moons", 300, 0), toy_data("moons", 1000, 1)
    model = fit_simnet(points)
    axis, grid = plane()
    similarities = model.to_kernel_machine().log_kernel(grid)
    z = model.templates_
    difference = model.decision_function(grid)

    figure = Figure(figsize=(8.2, 3.2), layout="constrained")
    first, second, third = figure.subplots(1, 3)
    draw_points(first, points)
    for l in range(len(z)):
        first.contour(
            axis,
            axis,
            similarities[:, l].reshape(len(axis), -1),
            levels=[-1],
            colors="dimgrey",
            linewidths=0.8,
            linestyles="-",
        )
    first.plot(*z.T, "kx", markersize=6)
    first.set_title(f"1. similarity to {len(z)} templates ×\n−Σ u·|x − z|$^2$")
    reach = 6.0  # beyond, the class is certain
    second.contourf(
        axis,
        axis,
        difference.reshape(len(axis), -1),
        levels=np.linspace(-reach, reach, 13),
        cmap="BrBG_r",
        extend="both",
    )
    second.plot(*z.T, "kx", markersize=6)
    second.set(aspect="equal", xticks=[], yticks=[], xlim=(-3, 3), ylim=(-3, 3))
    second.set_title("2. MEX over the templates\n= a score for each class")
    draw_regions(third, points, difference)
    accuracy = model.score(*test)
    third.set_title(f"3. the larger score decides\n{accuracy:.1%} of 1000 new points")
    return figure


def decision_regions_picture() -> Figure:
    """Three data sets, three classifiers, the same 300 points and 1000 new ones."""
    figure = Figure(figsize=(8.2, 8.4), layout="constrained")
    rows = figure.subplots(3, 3)
    _, grid = plane()
    for panels, name in zip(rows, ("moons", "circles", "blobs"), strict=True):
        points, test = toy_data(name, 300, 0), toy_data(name, 1000, 1)
        simnet = fit_simnet(points)
        svm = SVC(kernel="rbf", random_state=0).fit(*points)
        mlp = MLPClassifier((8,), solver="lbfgs", alpha=1e-3, max_iter=5000, random_state=0).fit(*points)

        def log_odds(x: np.ndarray, mlp: MLPClassifier = mlp) -> np.ndarray:
            return np.asarray(mlp.predict_proba(x)[:, 1] - 0.5)

        shown = (
            ("SimNet MLP, 8 templates", simnet.decision_function),
            (f"SVM (RBF), {len(svm.support_)} support vectors", svm.decision_function),
            ("MLP, 8 hidden units (ReLU)", log_odds),
        )
        for panel, (title, decide) in zip(panels, shown, strict=True):
            draw_regions(panel, points, decide(grid))
            accuracy = np.mean((decide(test[0]) > 0) == test[1])
            panel.set_title(f"{title}\n{accuracy:.1%} of 1000 new points")
        panels[0].plot(*simnet.templates_.T, "kx", markersize=6)
        panels[1].plot(
            *svm.support_vectors_.T, "o", mfc="none", mec="black", markersize=5, markeredgewidth=0.5
        )
        panels[0].set_ylabel(name)
    return figure


PICTURES = {
    "mex": mex_picture,
    "similarity": similarity_picture,
    "how_it_works": how_it_works_picture,
    "decision_regions": decision_regions_picture,
}


def main(folder: Path = IMAGES) -> None:
    """Write every picture, with a palette of 128 colours, which halves the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        buffer = io.BytesIO()
        draw().savefig(buffer, format="png", metadata={"Software": None})
        Image.open(buffer).convert("RGB").quantize(128).save(folder / f"{name}.png", optimize=True)
        print(folder / f"{name}.png")


if __name__ == "__main__":
    main()
