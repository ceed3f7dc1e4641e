"""The paper's accounting: by hand, against torch's counter, and the published totals."""

from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import simnets
from simnets.flops import markdown_table, models_overview
from simnets.models import DeepSimNetSpec, LayerSpec

SHAPE = (3, 32, 32)


def cost(name: str, num_classes: int = 10, lp_cost: int = 4, **overrides) -> simnets.flops.Cost:
    return simnets.count_cost(simnets.create_model(name, num_classes, **overrides), SHAPE, lp_cost=lp_cost)


@pytest.mark.parametrize(
    ("name", "megaflops", "params"),
    [("caffe_quick", 24.8, 145_578), ("simnet3_compact", 3.5, 4_880), ("nin_compact", 3.5, 4_840)],
)
def test_totals_of_the_paper(name: str, megaflops: float, params: int) -> None:
    """Table 1 and section 6.4."""
    assert round(cost(name).flops / 1e6, 1) == megaflops
    assert cost(name).params == params


def test_two_layers_in_both_readings() -> None:
    """The paper's 14.2 M lies closest to one multiply-add an ℓ2 coordinate."""
    four, two = cost("simnet2"), cost("simnet2", lp_cost=2)
    assert round(four.core_flops / 1e6, 1) == 16.6
    assert round(two.core_flops / 1e6, 1) == 14.3
    assert round(four.flops / 1e6, 1) == 16.8
    assert round(two.flops / 1e6, 1) == 14.5
    assert (four.params, cost("simnet2", 100).params) == (64_576, 70_336)


@pytest.mark.parametrize("name", ["simnet4", "simnet2_plus"])
def test_more_layers_within_the_budget_of_two(name: str) -> None:
    """Everything counted, 4 per ℓ2 coordinate, against the paper's 64.6 K and 14.2 M."""
    assert cost(name).params <= 64_600
    assert cost(name).flops <= 14.2e6


def test_more_layers_within_the_budget_of_the_compact_networks() -> None:
    for compact in ("simnet3_compact", "nin_compact"):
        assert cost("simnet3_compact_plus").params <= cost(compact).params
        assert cost("simnet3_compact_plus").flops <= cost(compact).flops


def test_depthwise_layers_by_hand() -> None:
    second = {layer.name: layer.flops for layer in cost("simnet2_plus").layers}
    assert second["layers.1.whiten"] == 2 * 14**2 * 32 * 9
    assert second["layers.1.similarity"] == 2 * 14**2 * 32 * 64
    assert second["layers.1.rectify"] == 14**2 * 64


def test_resnet8_as_the_benchmark_counts() -> None:
    assert cost("resnet8").params == 78_666
    assert round(cost("resnet8").core_flops / 1e6, 1) == 25.0


def test_two_layers_by_hand() -> None:
    found = {
        layer.name: (layer.kind, layer.output, layer.params, layer.flops) for layer in cost("simnet2").layers
    }
    assert found == {
        "layers.0.whiten": ("convolution", (32, 28, 28), 75 * 32 + 32, 2 * 28**2 * 32 * 75),
        "layers.0.similarity": ("similarity", (32, 28, 28), 2 * 32 * 32, 4 * 28**2 * 32 * 32),
        "layers.0.pool": ("pooling", (32, 13, 13), 0, 8 * 13**2 * 32),
        "layers.1.whiten": ("convolution", (64, 9, 9), 800 * 64 + 64, 2 * 9**2 * 64 * 800),
        "layers.1.similarity": ("similarity", (64, 9, 9), 2 * 64 * 64, 4 * 9**2 * 64 * 64),
        "classify": ("MEX", (10, 9, 9), 640, 9**2 * (10 * 64 + 2 * 64 * 10 + 10 * 10)),
        "pool": ("pooling", (10,), 0, 81 * 10),
    }


@pytest.mark.parametrize("name", ["caffe_quick", "nin_compact", "resnet8", "convnet1_50"])
def test_convolutions_and_dense_layers_as_torch_counts_them(name: str) -> None:
    model = simnets.create_model(name).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, *SHAPE))
    assert cost(name).core_flops == counter.get_total_flops()


def test_whitening_as_torch_counts_it() -> None:
    """In a preconditioned network too: W = V·A is folded before use, so it costs nothing."""
    model = simnets.create_model("simnet2")
    plain = simnets.count_cost(model)
    whitening = sum(layer.flops for layer in plain.layers if layer.kind == "convolution")
    filters = [block.conv_similarity.filters for block in model.layers]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        torch.conv2d(torch.zeros(1, 3, 32, 32), filters[0])
        torch.conv2d(torch.zeros(1, 32, 13, 13), filters[1])
    assert whitening == counter.get_total_flops()
    model.layers[0].conv_similarity.precondition(torch.eye(75) * 2)
    model.scale = 3.0
    assert simnets.count_cost(model) == plain


def one_layer(**options) -> dict[str, int]:
    layer = {"whitened": None, "templates": 5, "field": 3, "pool": 2}
    head = {key: options.pop(key) for key in list(options) if key in ("classify_beta", "global_beta")}
    spec = DeepSimNetSpec(
        input_shape=(2, 7, 7), num_classes=3, layers=(LayerSpec(**{**layer, **options}),), **head
    )
    return {layer.name: layer.flops for layer in simnets.count_cost(spec.build()).layers}


@pytest.mark.parametrize(
    ("options", "name", "expected"),
    [
        # 5×5 positions, 5 templates of 18 coordinates
        ({"p": 2.0}, "layers.0", 4 * 25 * 5 * 18),
        ({"p": 1.0}, "layers.0", 4 * 25 * 5 * 18),
        ({"p": 2.0, "p_mode": "learned"}, "layers.0", 4 * 25 * 5 * 18),
        ({"p": 1.5}, "layers.0", (4 + 20) * 25 * 5 * 18),
        ({"kind": "linear"}, "layers.0", 2 * 25 * 5 * 18),
        # pooled 2×2/2 to 2×2 positions
        ({}, "layers.0.pool", 3 * 4 * 5),
        ({"pool_beta": float("-inf")}, "layers.0.pool", 3 * 4 * 5),
        ({"pool_beta": 0.0}, "layers.0.pool", 4 * 4 * 5),
        ({"pool_beta": 0.5}, "layers.0.pool", 10 * 25 * 5 + (3 + 10) * 4 * 5),
        # classification at 4 positions: 5 inputs, 3 classes
        ({}, "classify", 4 * (10 * 5 + 2 * 5 * 3 + 10 * 3)),
        ({"classify_beta": float("inf")}, "classify", 4 * 3 * (5 + 4)),
        ({"classify_beta": 0.0}, "classify", 4 * (5 + 3)),
        # 3 maps of 4 positions
        ({}, "pool", 3 * 4),
        ({"global_beta": float("inf")}, "pool", 3 * 3),
        ({"global_beta": 2.0}, "pool", 10 * 12 + (3 + 10) * 3),
    ],
)
def test_each_operation_by_hand(options: dict[str, object], name: str, expected: int) -> None:
    assert one_layer(**options)[name] == expected


def test_only_learned_numbers_count() -> None:
    assert cost("simnet2", p_mode="learned").params == 64_576 + 2
    assert cost("simnet2", classify_beta_mode="learned", global_beta_mode="learned").params == 64_576 + 2
    assert cost("simnet2", weights_mode="frozen").params == 64_576 - 32 * 32 - 64 * 64
    assert cost("simnet2", bias_mode="learned").params == 64_576 + 32 + 64


def test_a_shared_layer_costs_twice_and_is_stored_once() -> None:
    layer = nn.Linear(4, 4)
    found = simnets.count_cost(nn.Sequential(layer, nn.ReLU(), layer), (4,))
    assert found.flops == 2 * 2 * 16 + 4
    assert found.params == 20


def test_simnet_mlp() -> None:
    found = cost("simnet_mlp", templates=7)
    assert [layer.flops for layer in found.layers] == [4 * 7 * 3072, 10 * 7 + 2 * 7 * 10 + 10 * 10]


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * self.weight)


@pytest.mark.parametrize("module", [nn.Bilinear(3, 3, 3), nn.GELU(), Own()])
def test_what_is_not_known_is_refused(module: nn.Module) -> None:
    """Not counted as 0."""
    with pytest.raises(
        simnets.SimNetsError, match=f"cost of 1 is not known: it is a {type(module).__name__}"
    ):
        simnets.count_cost(nn.Sequential(nn.Linear(3, 3), module), (3,))


def test_wrong_arguments() -> None:
    with pytest.raises(simnets.SimNetsError, match="lp_cost is 3"):
        cost("simnet2", lp_cost=3)
    with pytest.raises(simnets.SimNetsError, match="input_shape is missing"):
        simnets.count_cost(nn.Linear(3, 3))
    with pytest.raises(simnets.SimNetsError, match="this network takes"):
        simnets.count_cost(simnets.create_model("simnet3_compact"), (1, 8, 8))
    with pytest.raises(simnets.SimNetsError, match="adaptive pooling"):
        simnets.count_cost(nn.Sequential(nn.AdaptiveAvgPool2d(2)), (3, 8, 8))


def test_counting_leaves_the_network_as_it_was() -> None:
    model = simnets.create_model("resnet8")
    model.train()
    model.norm.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    simnets.count_cost(model)
    assert model.training
    assert model.block1.norm1.training
    assert not model.norm.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_the_table_says_how_it_was_counted() -> None:
    console = Console(file=StringIO(), width=120)
    console.print(cost("simnet2").table("simnet2"))
    text = " ".join(console.file.getvalue().split())
    for part in (
        "16,803,662",
        "16,595,968",
        "64,576",
        "4 per coordinate",
        "14.53 M in all, 14.33 M",
        "14.2 M",
    ):
        assert part in text
    console = Console(file=StringIO(), width=120)
    console.print(cost("caffe_quick"))
    assert "24,822,080" in console.file.getvalue()
    assert "At 2 per coordinate" not in console.file.getvalue()


def test_equal_contrast_costs_two_means_and_a_product() -> None:
    # x² and two sums over channels; two sums of a window and a root a position; the product with it a channel
    contrast = 3 * 3 * 32 * 32 + 28 * 28 * (2 * 25 + 10 + 32)
    assert cost("simnet2_contrast").flops == cost("simnet2").flops + contrast
    assert cost("simnet2_contrast").params == cost("simnet2").params


def test_the_page_of_models_is_up_to_date() -> None:
    page = Path(__file__).parent.parent / "docs" / "models.md"
    table = markdown_table(models_overview())
    assert len(table.splitlines()) == len(simnets.list_models()) + 2
    assert table in page.read_text(encoding="utf-8"), "put this table into docs/models.md:\n" + table
