"""SimNetClassifier beside tuned classifiers on real data: `python benchmarks/kernel_machine.py [NAME …]`.

Names: iris, wine, breast_cancer, digits (scikit-learn's own; five outer folds, parameters searched with three
inner folds) and fashion_mnist (the Debian package dataset-fashion-mnist; one split: 10,000 of the training
rows and all 10,000 test rows, parameters searched with three folds of the former). One thread; times are of
that thread.

`--only MODEL` measures one classifier again (SimNet, SVC, Nyström, MLP, k-NN) and keeps the others' results.
Writes results/kernel_machine.json, and results/kernel_machine.md with the table, as each data set is done.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from simnets import SimNetClassifier

FASHION = Path("/usr/share/datasets/fashion-mnist")
RESULTS = Path(__file__).parent.parent / "results" / "kernel_machine.json"
PIXELS = ("digits", "fashion_mnist")
LOADERS: dict[str, Callable[..., Any]] = {
    "iris": datasets.load_iris,
    "wine": datasets.load_wine,
    "breast_cancer": datasets.load_breast_cancer,
    "digits": datasets.load_digits,
}
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def idx(name: str) -> np.ndarray:
    data = gzip.decompress((FASHION / name).read_bytes())
    dimensions = data[3]
    shape = np.frombuffer(data, ">i4", dimensions, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def splits(name: str) -> Iterator[Split]:
    """Training rows and labels, test rows and labels; pixels in [0, 1]."""
    if name == "fashion_mnist":
        train, test = (
            idx(f"{part}-images-idx3-ubyte.gz").reshape(-1, 784) / 255 for part in ("train", "t10k")
        )
        labels, test_labels = (idx(f"{part}-labels-idx1-ubyte.gz") for part in ("train", "t10k"))
        chosen = np.random.default_rng(0).permutation(len(train))[:10_000]
        yield train[chosen].astype(np.float32), labels[chosen], test.astype(np.float32), test_labels
        return
    X, y = LOADERS[name](return_X_y=True)
    X = (X / 16 if name == "digits" else X).astype(np.float32)
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(X, y):
        yield X[train], y[train], X[test], y[test]


def candidates(name: str) -> dict[str, tuple[Any, dict[str, list[Any]]]]:
    """Each classifier with what is searched."""
    pixels, fashion = name in PIXELS, name == "fashion_mnist"

    def scaled(model: Any) -> Pipeline:
        return Pipeline([("scale", "passthrough" if pixels else StandardScaler()), ("model", model)])

    d = {"iris": 4, "wine": 13, "breast_cancer": 30, "digits": 64, "fashion_mnist": 784}[name]
    # around scikit-learn's default, 1/(d·variance)
    gammas = [
        factor / (d * (0.12 if pixels else 1.0)) for factor in ([0.5, 1, 2] if fashion else [0.1, 0.3, 1, 3])
    ]
    simnet: dict[str, Any] = {"random_state": 0}
    if fashion:
        simnet |= {"p": 2.0, "n_templates": 400, "scaling": "common", "max_iter": 60, "noise": 0.1}
        searched: dict[str, list[Any]] = {"dropout": [0.3, 0.5], "alpha": [3e-3, 1e-2]}
    elif pixels:
        simnet |= {"p": 2.0, "n_templates": 64, "scaling": "common", "alpha": 0.0, "noise": 0.7}
        simnet |= {"weights": "shared"}
        searched = {"dropout": [0.0, 0.2]}
    else:
        simnet |= {"n_templates": 12, "max_iter": 50}
        searched = {"weights": ["learned", "shared"], "alpha": [1e-3, 1e-2]}
    return {
        "SimNet": (SimNetClassifier(**simnet), searched),
        "SVC": (scaled(SVC()), {"model__C": [10] if fashion else [1, 10, 100], "model__gamma": gammas}),
        "Nyström + linear": (
            Pipeline(
                [
                    ("scale", "passthrough" if pixels else StandardScaler()),
                    ("map", Nystroem(n_components=300 if pixels else 50, random_state=0)),
                    ("model", LogisticRegression(max_iter=300)),
                ]
            ),
            {"map__gamma": gammas[:2], "model__C": [10, 100]},
        ),
        "MLP": (
            scaled(MLPClassifier(max_iter=30 if fashion else 300, random_state=0)),
            {"model__alpha": [1e-4, 1e-2] if not fashion else [1e-4]},
        ),
        "k-NN": (scaled(KNeighborsClassifier()), {"model__n_neighbors": [1, 3, 5]}),
    }


def evaluations(model: Any, rows: int) -> int | None:
    """Kernels, or distances, that classifying one row takes."""
    last = model[-1] if isinstance(model, Pipeline) else model
    if isinstance(last, SimNetClassifier):
        return len(last.templates_)
    if isinstance(last, SVC):
        return len(last.support_)
    if isinstance(last, KNeighborsClassifier):
        return rows
    return model["map"].n_components if "map" in getattr(model, "named_steps", {}) else None


def seconds(run: Callable[[], object], times: int = 1) -> float:
    found = []
    for _ in range(times):
        start = time.thread_time()
        run()
        found.append(time.thread_time() - start)
    return min(found)


def measure(name: str, model: Any, grid: dict[str, list[Any]], split: Split) -> dict[str, Any]:
    X, y, X_test, y_test = split
    best: dict[str, Any] = {key: values[0] for key, values in grid.items()}
    if any(len(values) > 1 for values in grid.values()):
        cv = StratifiedKFold(3, shuffle=True, random_state=1)
        best = GridSearchCV(model, grid, cv=cv, refit=False).fit(X, y).best_params_
    chosen = clone(model).set_params(**best)
    fit = seconds(lambda: chosen.fit(X, y))
    predicted = []
    times = 1 if name == "fashion_mnist" else 3
    predict = seconds(lambda: predicted.append(chosen.predict(X_test)), times)
    return {
        "accuracy": float((predicted[-1] == y_test).mean()),
        "evaluations": evaluations(chosen, len(X)),
        "fit_seconds": fit,
        "predict_seconds": predict,
        "chosen": best,
    }


def table(results: dict[str, Any]) -> str:
    lines = [
        "| data | classifier | accuracy % | kernels a row | fit s | predict ms |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, models in results.items():
        for model, runs in models.items():
            mean = {
                key: np.mean([run[key] for run in runs]) if runs[0][key] is not None else None
                for key in ("accuracy", "evaluations", "fit_seconds", "predict_seconds")
            }
            spread = f" ± {100 * np.std([run['accuracy'] for run in runs]):.1f}" if len(runs) > 1 else ""
            kernels = "" if mean["evaluations"] is None else f"{mean['evaluations']:.0f}"
            lines.append(
                f"| {name} | {model} | {100 * mean['accuracy']:.2f}{spread} | {kernels} "
                f"| {mean['fit_seconds']:.2f} | {1000 * mean['predict_seconds']:.1f} |"
            )
    return "\n".join(lines) + "\n"


def main(names: list[str], only: str = "") -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    for name in names or [*LOADERS, "fashion_mnist"]:
        if name == "fashion_mnist" and not FASHION.exists():
            print("fashion_mnist: not there; apt-get install dataset-fashion-mnist")
            continue
        found: dict[str, list[Any]] = {}
        for split in splits(name):
            for model, (estimator, grid) in candidates(name).items():
                if not model.startswith(only):
                    continue
                found.setdefault(model, []).append(measure(name, estimator, grid, split))
                print(name, model, found[model][-1], flush=True)
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results.setdefault(name, {}).update(found)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(table(results))
        print(table({name: found}))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    chosen = arguments.pop(arguments.index("--only") + 1) if "--only" in arguments else ""
    main([argument for argument in arguments if argument != "--only"], chosen)
