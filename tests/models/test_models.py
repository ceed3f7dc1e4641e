"""What every registered network must do, whatever it is made of."""

import copy

import pytest
import torch
from torch.nn import functional as F

import simnets
from simnets.models import ImageClassifier

# learned numbers for 10 classes of 32×32 colour images, by hand
PARAMETERS = {
    "simnet_mlp": 2 * 3072 * 128 + 128 * 10,
    "simnet_mlpconv": 75 * 32 + 32 + 2 * 32 * 64 + 64 * 10,
    **{f"simnet1_{n}": 75 * 75 + 75 + 2 * 75 * n + 10 * n for n in (50, 100, 200, 400, 800)},
    "simnet2": 64_576,
    "simnet2_l1": 64_576,
    "simnet2_rectified": 64_576 + 32,
    "simnet2_contrast": 64_576,
    "simnet2_contrast_rectified": 64_576 + 32,
    "simnet4": (75 * 16 + 16 + 2 * 16 * 24)
    + (216 * 32 + 32 + 2 * 32 * 40)
    + (360 * 48 + 48 + 2 * 48 * 48)
    + (432 * 56 + 56 + 2 * 56 * 56)
    + 560,
    "simnet3": (75 * 75 + 75 + 2 * 75 * 192)
    + (4800 * 192 + 192 + 2 * 192 * 192)
    + (1728 * 192 + 192 + 2 * 192 * 192)
    + 1920,
    "simnet3_compact": (750 + 10 + 200) + (2500 + 10 + 200) + (900 + 10 + 200) + 100,
    "simnet3_compact_rectified": 4_880 + 20,
    "simnet2_plus": (75 * 24 + 24 + 24 * 32 + 32)
    + sum(10 * c + c * n + n for c, n in ((32, 64), (64, 96), (96, 96), (96, 112), (112, 112)))
    + (10 * 112 + 2 * 112 * 64)
    + 640,
    "simnet3_compact_plus": (27 * 6 + 6 + 6 * 16 + 16)
    + sum(10 * c + c * n + n for c, n in ((16, 20), (20, 24), (24, 26), (26, 26)))
    + (10 * 26 + 2 * 26 * 20)
    + 200,
    **{f"convnet1_{n}": 75 * n + n + 4 * n * 10 + 10 for n in (50, 100, 200, 400, 800, 1600, 3200)},
    "convnet2": (75 * 32 + 32 + 32 * 32 + 32) + (800 * 64 + 64 + 64 * 64 + 64) + (64 * 10 + 10),
    "caffe_quick": 145_578,
    "nin": 966_986,
    "nin_compact": 4_840,
    "resnet8": 78_186,  # and 480 running statistics
}
LARGE = {"nin", "simnet3", "simnet1_800", "convnet1_3200"}
CHEAP = ["simnet_mlp", "simnet_mlpconv", "simnet2", "simnet3_compact", "convnet1_50", "nin_compact"]


def images(shape: tuple[int, ...] = (3, 32, 32), count: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)


def test_the_registry_holds_what_the_architecture_promises() -> None:
    assert set(simnets.list_models()) == set(PARAMETERS)
    assert simnets.list_models("simnet1_*") == [f"simnet1_{n}" for n in (50, 100, 200, 400, 800)]


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_network_runs_learns_and_survives_a_file(name: str, tmp_path) -> None:
    torch.manual_seed(0)
    model = simnets.create_model(name)
    assert isinstance(model, ImageClassifier)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == PARAMETERS[name]

    x = images()
    model.train()
    scores = model(x)
    assert scores.shape == (2, 10)
    F.cross_entropy(scores, torch.tensor([3, 7])).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
    moved = [n for n, p in model.named_parameters() if p.requires_grad and bool((p.grad != 0).any())]
    assert len(moved) == len(list(model.parameters())), "a parameter that no gradient reaches"

    model.eval()
    model.classes = [f"class {index}" for index in range(10)]
    model.set_pixel_statistics([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])
    expected = model(x)
    assert torch.allclose(model(x.float() / 255), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(copy.deepcopy(model)(x), expected)

    path = tmp_path / "model.safetensors"
    simnets.save(model, path)
    loaded = simnets.load(path)
    assert type(loaded) is type(model)
    assert loaded.spec == model.spec
    assert loaded.classes == model.classes
    assert not loaded.training
    before, after = model.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in model.parameters()]
    assert torch.equal(loaded(x), expected)


@pytest.mark.parametrize("name", sorted(PARAMETERS.keys() - LARGE))
def test_a_state_dict_goes_from_one_network_to_another(name: str) -> None:
    first, second = (simnets.create_model(name, num_classes=100) for _ in range(2))
    second.load_state_dict(first.state_dict())
    x = images()
    assert first.eval()(x).shape == (2, 100)
    assert torch.equal(first(x), second.eval()(x))


@pytest.mark.parametrize("name", CHEAP)
def test_export_gives_the_same_scores_for_another_batch_size(name: str) -> None:
    model = simnets.create_model(name).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    example = images(count=3).float() / 255
    program = torch.export.export(model, (example,), dynamic_shapes=({0: batch},))
    x = images(count=5).float() / 255
    assert torch.allclose(program.module()(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["simnet_mlp", "simnet_mlpconv", "simnet1_50", "simnet3_compact", "caffe_quick", "nin_compact"]
)
def test_the_small_images_of_digits_work_too(name: str) -> None:
    model = simnets.create_model(name, input_shape=(1, 8, 8))
    assert model(images((1, 8, 8))).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "smallest"),
    [
        ("simnet2", 15),
        ("simnet3_compact", 6),
        ("simnet_mlpconv", 5),
        ("convnet1_50", 6),
        ("caffe_quick", 8),
        ("nin", 4),
    ],
)
def test_an_image_that_is_too_small_is_refused_with_the_smallest_size(name: str, smallest: int) -> None:
    model = simnets.create_model(name, input_shape=(3, smallest, smallest))
    assert model(images((3, smallest, smallest))).shape == (2, 10)
    with pytest.raises(
        simnets.SimNetsError, match=f"smallest possible size is {smallest}×{smallest}"
    ) as error:
        simnets.create_model(name, input_shape=(3, smallest - 1, 40))
    assert "\n" not in str(error.value)


def test_images_that_do_not_fit_are_refused() -> None:
    model = simnets.create_model("simnet3_compact")
    with pytest.raises(simnets.SimNetsError, match=r"\(2, 1, 32, 32\), this network takes \(N, 3, 32, 32\)"):
        model(torch.zeros(2, 1, 32, 32))
    with pytest.raises(simnets.SimNetsError, match="int64, expected uint8"):
        model(torch.zeros(2, 3, 32, 32, dtype=torch.int64))


def test_pixels_are_normalised_by_the_buffers() -> None:
    model = simnets.create_model("simnet3_compact")
    model.set_pixel_statistics([0.1, 0.2, 0.3], torch.tensor([0.5, 1.0, 2.0]))
    x = images()
    pixels = x.double().numpy() / 255
    for channel, (mean, std) in enumerate(((0.1, 0.5), (0.2, 1.0), (0.3, 2.0))):
        expected = torch.from_numpy((pixels[:, channel] - mean) / std)
        assert torch.allclose(model.normalise(x)[:, channel].double(), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ([0.1], [1.0, 1.0, 1.0], "mean of the pixels has shape"),
        ([0.1, 0.1, 0.1], [1.0, 0.0, 1.0], "expected positive"),
        ([0.1, 0.1, float("nan")], [1.0, 1.0, 1.0], "finite"),
    ],
)
def test_pixel_statistics_are_checked(mean: list[float], std: list[float], message: str) -> None:
    with pytest.raises(simnets.SimNetsError, match=message):
        simnets.create_model("simnet3_compact").set_pixel_statistics(mean, std)


def test_class_names_are_checked() -> None:
    model = simnets.create_model("simnet3_compact", num_classes=2)
    assert model.classes == ("0", "1")
    model.classes = ("cat", "dog")
    assert model.classes == ("cat", "dog")
    for wrong in (["cat"], "ab", [1, 2]):
        with pytest.raises(simnets.SimNetsError, match="expected 2 names"):
            model.classes = wrong
