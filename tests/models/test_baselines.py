"""The rivals: their published sizes, and their operations against plain numpy."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import simnets
from simnets.deploy import optimize
from simnets.errors import SimNetsError
from simnets.models.caffe_quick import CAFFE_STDS
from simnets.models.normalizable_conv import NormalizableConv2d
from simnets.models.spec import Spec


def test_caffe_quick_for_100_classes() -> None:
    """Table 1: 151.4 K."""
    model = simnets.create_model("caffe_quick", 100)
    assert sum(p.numel() for p in model.parameters()) == 151_428


def test_caffe_quick_of_another_width() -> None:
    model = simnets.create_model("caffe_quick", channels=(26, 26, 52, 52))
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert Spec.from_json(model.spec.to_json()) == model.spec
    # files that were written before there was a choice
    assert "channels" not in simnets.create_model("caffe_quick").spec.to_json()
    for channels in ((32, 32, 64), (32, 0, 64, 64)):
        with pytest.raises(SimNetsError, match=r"channels is .* expected four positive numbers"):
            simnets.create_model("caffe_quick", channels=channels)


def test_caffe_starting_values() -> None:
    torch.manual_seed(0)
    model = simnets.create_model("caffe_quick", init="caffe")
    layers = [model.conv1, model.conv2, model.conv3, model.dense1, model.dense2]
    for layer, std in zip(layers, CAFFE_STDS, strict=True):
        assert layer.weight.std().item() == pytest.approx(std, rel=0.1)
        assert not layer.bias.any()
    he = simnets.create_model("caffe_quick")
    assert he.conv2.weight.std().item() == pytest.approx((2 / 800) ** 0.5, rel=0.05)


def test_caffe_quick_pools_as_caffe_does() -> None:
    """Windows that stick out count, and an average there is over what is inside."""
    model = simnets.create_model("caffe_quick")
    x = torch.rand(1, 1, 32, 32)
    maximum, average = model.pool1(x)[0, 0].numpy(), model.pool2(x)[0, 0].numpy()
    pixels = x[0, 0].numpy()
    assert maximum.shape == average.shape == (16, 16)
    for i in (0, 7, 15):
        for j in (0, 15):
            window = pixels[2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
            assert maximum[i, j] == window.max()
            assert average[i, j] == pytest.approx(window.mean(), rel=1e-6)


def test_convnet2_has_the_grids_of_simnet2() -> None:
    stages = {name: simnets.models.model_spec(name).stages() for name in ("simnet2", "convnet2")}
    assert [s.output for s in stages["simnet2"]] == [s.output for s in stages["convnet2"]]
    model = simnets.create_model("convnet2")
    seen = []
    model.classify.register_forward_hook(lambda _module, inputs, output: seen.extend([inputs[0], output]))
    scores = model(torch.rand(2, 3, 32, 32))
    assert [tuple(maps.shape) for maps in seen] == [(2, 64, 9, 9), (2, 10, 9, 9)]
    assert torch.allclose(scores, seen[1].mean((2, 3)), atol=1e-6)


@pytest.mark.parametrize("size", [(32, 32), (8, 8), (11, 14)])
def test_convnet1_pools_over_quadrants(size: tuple[int, int]) -> None:
    model = simnets.create_model("convnet1_50", input_shape=(3, *size))
    x = torch.rand(2, 3, *size)
    maps = F.relu(F.conv2d((x - 0.5) / 0.25, model.conv.weight, model.conv.bias)).detach().numpy()
    rows, columns = maps.shape[2:]
    top, left = slice(0, (rows + 1) // 2), slice(0, (columns + 1) // 2)
    bottom, right = slice(rows // 2, rows), slice(columns // 2, columns)
    quadrants = [(top, left), (top, right), (bottom, left), (bottom, right)]
    features = np.stack([maps[:, :, r, c].max((2, 3)) for r, c in quadrants], -1).reshape(2, -1)
    expected = features @ model.dense.weight.detach().numpy().T + model.dense.bias.detach().numpy()
    assert np.allclose(model(x).detach().numpy(), expected, atol=1e-5)


def test_nin_has_dropout_in_training_only_and_the_compact_one_has_none() -> None:
    dropouts = {
        name: [m.p for m in simnets.create_model(name).modules() if isinstance(m, torch.nn.Dropout)]
        for name in ("nin", "nin_compact")
    }
    assert dropouts == {"nin": [0.5, 0.5], "nin_compact": []}
    small = simnets.create_model("nin_compact", dropout=0.5)
    x = torch.rand(2, 3, 32, 32)
    assert not torch.equal(small(x), small(x))
    small.eval()
    assert torch.equal(small(x), small(x))


def test_nin_averages_its_class_maps() -> None:
    model = simnets.create_model("nin_compact").eval()
    x = torch.rand(2, 3, 32, 32)
    maps = model.layers((x - 0.5) / 0.25)
    assert maps.shape == (2, 10, 8, 8)
    assert torch.allclose(model(x), maps.mean((2, 3)), atol=1e-6)
    assert maps.min() < 0
    assert simnets.create_model("nin_compact", class_relu=True)(x).min() >= 0


def test_normalising_nin_folds_away() -> None:
    torch.manual_seed(0)
    model = simnets.create_model("nin_compact", input_shape=(3, 12, 12)).double().eval()
    layers = [layer for layer in model.modules() if isinstance(layer, NormalizableConv2d)]
    assert len(layers) == 8  # not that of the class maps
    x = torch.rand(20, 3, 12, 12, dtype=torch.float64)
    with torch.no_grad():
        for layer in layers:
            layer.bias.uniform_(-1, 1)
        before = model(x)
        for layer in layers:
            layer.normalize()
        torch.testing.assert_close(model(x), before)  # running averages start where nothing changes
        model.train()
        for _ in range(100):
            model(x)
        maps = layers[0]((x - 0.5) / 0.25)
        torch.testing.assert_close(maps.mean((0, 2, 3)), layers[0].bias.detach(), atol=1e-9, rtol=0)
        torch.testing.assert_close(maps.var((0, 2, 3)), torch.ones(10).double(), atol=2e-3, rtol=0)
        other = simnets.create_model("nin_compact", input_shape=(3, 12, 12)).double()
        other.load_state_dict(model.state_dict())
        expected = model.eval()(x)
        torch.testing.assert_close(other.eval()(x), expected)
        torch.testing.assert_close(optimize(model)(x), expected)
        assert layers[0].batch_norm is not None  # of the copy, not of the network
        for layer in layers:
            layer.fold()
        assert set(model.state_dict()) == set(
            simnets.create_model("nin_compact", input_shape=(3, 12, 12)).state_dict()
        )
        torch.testing.assert_close(model(x), expected)
        other.load_state_dict(model.state_dict())  # what is folded loads into what is not
        torch.testing.assert_close(other(x), expected)


def test_resnet8_has_the_numbers_of_the_benchmark() -> None:
    """78,666 in all, as Keras counts: learned, and the running statistics of seven normalisations."""
    model = simnets.create_model("resnet8")
    statistics = [b for name, b in model.named_buffers() if name.endswith(("running_mean", "running_var"))]
    assert len(statistics) == 14
    learned = sum(p.numel() for p in model.parameters())
    assert learned + sum(b.numel() for b in statistics) == 78_666
    shortcuts = [type(block.shortcut).__name__ for block in (model.block1, model.block2, model.block3)]
    assert shortcuts == ["Identity", "Conv2d", "Conv2d"]


def test_a_residual_block_adds_its_input() -> None:
    block = simnets.create_model("resnet8").block1.eval()
    torch.nn.init.zeros_(block.norm2.weight)
    x = torch.randn(2, 16, 5, 5)
    assert torch.allclose(block(x), x.clamp(min=0))
