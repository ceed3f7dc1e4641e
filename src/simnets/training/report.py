"""The files that describe a finished run: pictures, and one page that holds everything."""

from __future__ import annotations

import base64
import html
import math
import platform
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from simnets.data import ImageDataset
from simnets.flops import count_cost
from simnets.models import ImageClassifier, list_models
from simnets.training import pictures
from simnets.training.display import span
from simnets.training.evaluate import Evaluation
from simnets.training.loop import Outcome

_MISTAKES = 24
_CONFUSIONS = 8


def files(
    model: ImageClassifier,
    config: dict[str, Any],
    outcome: Outcome,
    evaluation: Evaluation,
    scores: Tensor,
    testing: ImageDataset,
    machine: str,
) -> dict[str, bytes | str]:
    """learning_curves.png, confusion_matrix.png and report.html; `scores` (N, k) are those of `testing`."""
    curves = pictures.learning_curves(outcome.history)
    confusion = pictures.confusion_matrix(evaluation)
    title = f"{_network_name(config)} on {config['data']['name']}"
    sections = [
        _cards(model, outcome, evaluation),
        _section("Learning curves", _picture(curves, "learning curves")),
        _section("Which classes are confused", _confusion(evaluation, confusion)),
        _section("Most confident mistakes", _mistakes(scores, testing)),
        _section("What the network has learned", _learned(model)),
        _section("Start", _list(outcome.notes) + _pretraining(outcome.pretraining)) if outcome.notes else "",
        _section("Network", _network(model)),
        _section("Recipe", _settings(config, machine)),
        _section("Epochs", _epochs(outcome.history)),
    ]
    page = _PAGE.format(title=html.escape(title), style=_style(), body="\n".join(filter(None, sections)))
    return {"learning_curves.png": curves, "confusion_matrix.png": confusion, "report.html": page}


def _network_name(config: dict[str, Any]) -> str:
    origin, family = config["model"]["origin"], config["model"]["spec"]["family"]
    return str(origin if origin in list_models() else family)


def _cards(model: ImageClassifier, outcome: Outcome, evaluation: Evaluation) -> str:
    cost = count_cost(model)
    cards = [("test accuracy", f"{evaluation.accuracy:.2%}", f"{evaluation.images:,} images")]
    last = outcome.history[-1]
    if "validation_accuracy" in last:
        cards.append(("validation accuracy", f"{last['validation_accuracy']:.2%}", "after the last epoch"))
    cards += [
        ("test loss", f"{evaluation.loss:.4f}", "cross-entropy"),
        ("calibration error", f"{evaluation.calibration_error:.2%}", "confidence against accuracy"),
        ("parameters", f"{cost.params:,}", "learned numbers"),
        ("cost", f"{cost.flops / 1e6:.2f} M", "FLOPs an image"),
        ("training", span(outcome.seconds), f"{len(outcome.history)} epochs"),
    ]
    boxes = (
        f'<div class="card"><div class="name">{name}</div><div class="value">{value}</div>'
        f'<div class="note">{note}</div></div>'
        for name, value, note in cards
    )
    return f'<div class="cards">{"".join(boxes)}</div>'


def _confusion(evaluation: Evaluation, picture: bytes) -> str:
    classes = evaluation.classes
    rows = [
        (html.escape(name), f"{sum(counts):,}", "–" if math.isnan(share) else _bar(share))
        for name, counts, share in zip(classes, evaluation.confusion, evaluation.per_class, strict=True)
    ]
    per_class = _table(("class", "images", "accuracy"), rows)
    cells = ((count, i, j) for i, row in enumerate(evaluation.confusion) for j, count in enumerate(row))
    pairs = sorted(((count, i, j) for count, i, j in cells if i != j and count), reverse=True)[:_CONFUSIONS]
    rows = [(html.escape(classes[i]), html.escape(classes[j]), str(count)) for count, i, j in pairs]
    worst = (
        f"<h3>Most frequent confusions</h3>{_table(('true', 'taken for', 'times'), rows)}" if pairs else ""
    )
    return (
        f'<div class="pair"><div>{_picture(picture, "confusion matrix")}</div>'
        f'<div><h3>By class</h3><div class="scroll">{per_class}</div>{worst}</div></div>'
    )


def _bar(share: float) -> str:
    return f'<span class="bar"><i style="width:{100 * share:.1f}%"></i></span> {share:.1%}'


def _mistakes(scores: Tensor, testing: ImageDataset) -> str:
    confidence, predicted = scores.softmax(1).max(1)
    wrong = torch.nonzero(predicted != testing.labels).squeeze(1)
    if not len(wrong):
        return "<p>None: every test image was classified rightly.</p>"
    order = wrong[confidence[wrong].argsort(descending=True)][:_MISTAKES].tolist()
    names = [html.escape(name) for name in testing.classes]
    figures = (
        f'<figure><img class="pixels" alt="test image {i}" src="{_uri(pictures.pixels(testing.images[i]))}">'
        f"<figcaption><b>{names[int(testing.labels[i])]}</b> taken for <b>{names[int(predicted[i])]}</b><br>"
        f"{confidence[i]:.0%} sure</figcaption></figure>"
        for i in order
    )
    return f'<div class="gallery">{"".join(figures)}</div>'


def _learned(model: ImageClassifier) -> str:
    drawn = pictures.parameters(model)
    return "".join(_picture(content, name.replace("_", " ")) for name, content in drawn.items())


def _pretraining(found: dict[str, Any] | None) -> str:
    """What pre-training found, a column a layer."""
    if found is None:
        return ""
    layers = found["layers"]
    facts: dict[str, Callable[[dict[str, Any]], str]] = {
        "patches": lambda x: f"{x['patches']:,} of {x['images']:,} images",
        "dimension": lambda x: f"{x['patch_dimension']} → {x['whitened'] or x['patch_dimension']}",
        "variance kept": lambda x: f"{x['explained_variance']:.1%}",
        "templates": lambda x: f"{x['templates']}",
        "order p": lambda x: f"{x['shape']:.3g}",
        "mean log-likelihood": lambda x: f"{x['likelihoods'][0]:.2f} → {x['likelihoods'][-1]:.2f}",
        "share of a template": lambda x: f"{min(x['usage']):.2%} to {max(x['usage']):.2%}",
        "templates that share a patch": lambda x: f"{x['perplexity']:.1f}",
        "seconds": lambda x: f"{sum(x['seconds'].values()):.1f}",
    }
    rows = [(name, *(html.escape(fact(layer)) for layer in layers)) for name, fact in facts.items()]
    head = ("", *(html.escape(layer["name"]) for layer in layers))
    return f"<h3>Pre-training, without labels</h3>{_table(head, rows)}"


def _network(model: ImageClassifier) -> str:
    stages = _table(
        ("stage", "operation", "output", "learned", "fixed"),
        [
            (*map(html.escape, (s.name, s.operation, "×".join(map(str, s.output)), s.learned, s.fixed)),)
            for s in model.spec.stages()
        ],
    )
    cost = count_cost(model)
    rows = [
        (html.escape(layer.name), html.escape(layer.kind), f"{layer.params:,}", f"{layer.flops:,}")
        for layer in cost.layers
    ]
    rows.append(("<b>total</b>", "", f"<b>{cost.params:,}</b>", f"<b>{cost.flops:,}</b>"))
    costs = _table(("layer", "kind", "parameters", "FLOPs"), rows)
    return f'{stages}<h3>Cost</h3>{costs}<p class="note">{html.escape(cost.caption())}</p>'


def _settings(config: dict[str, Any], machine: str) -> str:
    recipe = [(name, html.escape(_plain(value))) for name, value in config["recipe"].items()]
    others = {
        "data": config["data"]["name"],
        "training images": config["data"]["train"],
        "test images": config["data"]["test"],
        "seed": config["seed"],
        "amp": config["amp"] or "off",
        "compile": config["compile"],
        "machine": machine,
        "simnets": config["simnets"],
        "torch": torch.__version__,
        "Python": platform.python_version(),
    }
    run = [(name, html.escape(_plain(value))) for name, value in others.items()]
    half = math.ceil(len(recipe) / 2)
    tables = (recipe[:half], recipe[half:], run)
    return f'<div class="columns">{"".join(_table((), rows) for rows in tables)}</div>'


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(_plain, value)) if isinstance(value, list | tuple) else str(value)


def _epochs(history: list[dict[str, Any]]) -> str:
    names = [name for name in history[0] if name != "step"]
    rows = [tuple(_figure(name, record[name]) for name in names) for record in history]
    table = _table([name.replace("_", " ") for name in names], rows)
    return f"<details><summary>{len(history)} epochs</summary>{table}</details>"


def _figure(name: str, value: float) -> str:
    if "accuracy" in name:
        return f"{value:.2%}"
    return f"{value:,.0f}" if name in ("epoch", "images_per_second", "seconds") else f"{value:.4g}"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>"


def _list(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "<thead><tr>" + "".join(f"<th>{name}</th>" for name in head) + "</tr></thead>" if head else ""
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{top}<tbody>{body}</tbody></table>"


def _picture(content: bytes, name: str) -> str:
    return f'<img class="plot" alt="{html.escape(name)}" src="{_uri(content)}">'


def _uri(content: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(content).decode()


def _style() -> str:
    return resources.files("simnets.training").joinpath("report.css").read_text()


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{title}</h1></header>
<main>
{body}
</main>
</body>
</html>
"""
