"""Reports: table, JSON, pictures; and structures that are chosen from unlabelled images."""

import json
import math

import pytest
import torch
from matplotlib.image import imread
from rich.console import Console
from sklearn.datasets import load_digits

from simnets.errors import SimNetsError
from simnets.models import create_model, model_spec
from simnets.nn import Similarity
from simnets.pretrain import PretrainConfig, pretrain_model, pretrain_structure

DIGITS = torch.tensor(load_digits().images[:400] / 16, dtype=torch.float32).unsqueeze(1)
QUICK = {"patches": 3000, "iterations": 8}


@pytest.fixture(scope="module")
def structure():
    spec = model_spec("simnet2", 10, input_shape=(1, 16, 16), field=3)
    images = torch.nn.functional.interpolate(DIGITS[:150], size=16)
    return pretrain_structure(images, spec, PretrainConfig(**QUICK), most_templates=6), images


def test_structure_is_a_network_that_is_pretrained(structure):
    found, images = structure
    for layer, report in zip(found.spec.layers, found.report.layers, strict=True):
        assert layer.whitened == report.dimension_choice.dimension == report.whitened
        assert layer.templates == report.component_choice.components == report.templates
        assert 1 <= layer.templates <= 6
    assert found.model.spec == found.spec
    assert torch.isfinite(found.model(images)).all()
    # the layers hold what pre-training alone puts there
    again = found.spec.build()
    pretrain_model(again, images, PretrainConfig(**QUICK))
    for block, expected in zip(found.model.layers, again.layers, strict=True):
        torch.testing.assert_close(block.conv_similarity.filters, expected.conv_similarity.filters)


def test_known_dimension_and_clusters_become_the_structure():
    # each image is one patch: 4 clusters in 3 of 25 dimensions
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(3, 25, generator=generator)
    centres = 12 * torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    latent = centres[torch.randint(4, (1500,), generator=generator)] + torch.randn(
        1500, 3, generator=generator
    )
    images = (latent @ basis + 0.3 * torch.randn(1500, 25, generator=generator)).view(-1, 1, 5, 5)
    spec = model_spec("simnet_mlpconv", 2, input_shape=(1, 5, 5))
    found = pretrain_structure(images, spec, PretrainConfig(whitening="pca", **QUICK), most_templates=8)
    assert (found.spec.layers[0].whitened, found.spec.layers[0].templates) == (3, 4)


def test_numbers_and_criteria_can_be_mixed():
    spec = model_spec("simnet_mlpconv", 10, input_shape=(1, 8, 8))
    fixed = pretrain_structure(DIGITS, spec, PretrainConfig(**QUICK), whitened_channels=7, templates=5)
    assert (fixed.spec.layers[0].whitened, fixed.spec.layers[0].templates) == (7, 5)
    kept = pretrain_structure(DIGITS, spec, PretrainConfig(**QUICK), whitened_channels=0.9, templates="spec")
    assert kept.spec.layers[0].templates == spec.layers[0].templates
    assert kept.report.layers[0].explained_variance >= 0.9


def test_structure_needs_images_more_than_once():
    spec = model_spec("simnet_mlpconv", 10, input_shape=(1, 8, 8))
    with pytest.raises(SimNetsError, match="only once"):
        pretrain_structure(iter([DIGITS]), spec)
    with pytest.raises(SimNetsError, match="all the same"):
        pretrain_structure(torch.zeros(100, 1, 8, 8), spec, PretrainConfig(**QUICK))


def test_table_shows_every_layer(structure):
    console = Console(width=100, record=True)
    console.print(structure[0].report.table())
    text = console.export_text()
    assert "layers.0.conv_similarity" in text
    assert "layers.1.conv_similarity" in text
    for row in ("variance kept", "excess kurtosis", "log-likelihood", "usage", "perplexity", "seconds"):
        assert row in text


def test_json_has_the_numbers(structure):
    report = structure[0].report
    data = json.loads(report.to_json())
    first = data["layers"][0]
    assert first["likelihoods"] == report.layers[0].likelihoods
    assert math.isclose(sum(first["usage"]), 1.0)
    assert len(first["kurtosis"]) == first["whitened"]
    assert len(first["eigenvalues"]) == first["patch_dimension"] == 9
    assert set(first["seconds"]) == {"sampling", "whitening", "mixture"}
    assert first["component_choice"]["curves"]["nec"][0] == 1.0
    assert first["dimension_choice"]["votes"]["minka"] >= 1


def test_pictures_are_written_one_page_a_layer(structure, tmp_path):
    paths = structure[0].report.save(tmp_path / "report")
    assert [path.name for path in paths] == [
        "pretrain.json",
        "pretrain-layers.0.conv_similarity.png",
        "pretrain-layers.1.conv_similarity.png",
    ]
    for path in paths[1:]:
        picture = imread(path)
        assert picture.shape[:2] == (900, 1300)
        assert 0.05 < (picture[..., :3] < 0.9).any(2).mean() < 0.9
    assert sorted(tmp_path.joinpath("report").iterdir()) == sorted(paths)  # nothing half-written is left


@pytest.mark.parametrize("width", [7, 16])
def test_layers_without_filters_or_places_have_a_page_too(width, tmp_path):
    report = pretrain_model(Similarity(width, 3), torch.randn(300, width), PretrainConfig(**QUICK))
    assert imread(report.save(tmp_path)[1]).shape[:2] == (900, 1300)


def test_filters_map_back_to_patches():
    torch.manual_seed(0)
    model = create_model("simnet_mlpconv", input_shape=(1, 8, 8), whitened=12, templates=6)
    layer = pretrain_model(model, DIGITS, PretrainConfig(**QUICK)).layers[0]
    conv = model.layers[0].conv_similarity
    # what the pictures show as templates is what the filters map to the templates
    with torch.no_grad():
        patches = torch.tensor(layer.templates_as_patches).float()
        y = patches @ conv.filters.flatten(1).T + conv.conv_bias
    torch.testing.assert_close(y, conv.similarity.templates.detach(), atol=1e-3, rtol=1e-3)
