"""One file a network: nothing half-written, nothing executed, everything wrong said in one line."""

import json
import os
import pickle
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import simnets
from simnets.models import registry


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "model.safetensors"
    simnets.save(simnets.create_model("simnet3_compact"), path)
    return path


def metadata_of(path: Path) -> dict[str, str]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length])["__metadata__"]


def rewrite(path: Path, tensors=None, **metadata) -> None:
    old = metadata_of(path)
    new = {key: value for key, value in {**old, **metadata}.items() if value is not None}
    save_file(tensors if tensors is not None else load_file(path), path, new)


def refused(path: Path) -> str:
    with pytest.raises(simnets.SimNetsError) as error:
        simnets.load(path)
    message = str(error.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_what_the_file_says_of_itself(file: Path) -> None:
    metadata = metadata_of(file)
    assert metadata["simnets_format"] == "1"
    assert metadata["simnets_version"] == simnets.__version__
    assert json.loads(metadata["spec"])["family"] == "deep_simnet"
    assert json.loads(metadata["classes"]) == [str(index) for index in range(10)]


def test_loading_draws_no_random_numbers(file: Path) -> None:
    before = torch.get_rng_state()
    simnets.load(file)
    assert torch.equal(before, torch.get_rng_state())


def test_other_precisions_come_back_as_they_were(tmp_path: Path) -> None:
    for dtype in (torch.float64, torch.bfloat16):
        model = simnets.create_model("simnet3_compact").to(dtype)
        simnets.save(model, tmp_path / "m.safetensors")
        loaded = simnets.load(tmp_path / "m.safetensors")
        assert {p.dtype for p in loaded.parameters()} == {dtype}
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))


def test_files_that_are_not_ours(tmp_path: Path, file: Path) -> None:
    assert "not a file" in refused(tmp_path / "missing.safetensors")
    assert "not a file" in refused(tmp_path)
    other = tmp_path / "other.safetensors"
    save_file({"weight": torch.zeros(3)}, other)
    assert "not one that simnets wrote" in refused(other)
    other.write_text("hello")
    assert "damaged, or not a safetensors file" in refused(other)
    other.write_bytes(b"")
    assert "damaged, or not a safetensors file" in refused(other)


def test_a_pickle_is_not_executed(tmp_path: Path) -> None:
    trap = tmp_path / "trap"

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(trap),)

    path = tmp_path / "model.safetensors"
    path.write_bytes(pickle.dumps(Bomb()))
    assert "damaged, or not a safetensors file" in refused(path)
    assert not trap.exists()


@pytest.mark.parametrize("part", [0.001, 0.3, 0.99])
def test_a_file_that_was_cut(file: Path, part: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * part)])
    assert "damaged, or not a safetensors file" in refused(file)


def test_another_format(file: Path) -> None:
    rewrite(file, simnets_format="7", simnets_version="9.1")
    message = refused(file)
    assert "format 7 (simnets 9.1)" in message
    assert "reads format 1" in message


def test_metadata_that_lack_something(file: Path) -> None:
    content = file.read_bytes()
    for key in ("spec", "classes"):
        rewrite(file, **{key: None})
        assert f"lack '{key}'" in refused(file)
        file.write_bytes(content)


def test_a_wrong_specification_or_wrong_classes(file: Path) -> None:
    spec = json.loads(metadata_of(file)["spec"])
    rewrite(file, spec=json.dumps({**spec, "colour": "red"}))
    assert "unknown fields colour" in refused(file)
    rewrite(file, spec=json.dumps(spec), classes=json.dumps(["a", "b"]))
    assert "expected 10 names" in refused(file)
    rewrite(file, classes="7")
    assert "expected 10 names" in refused(file)
    rewrite(file, classes="{")
    assert "cannot be used" in refused(file)


def test_tensors_that_do_not_fit(file: Path) -> None:
    tensors = load_file(file)
    name = "layers.1.conv_similarity.filters"
    rewrite(file, {**tensors, name: torch.zeros(2, 2)})
    assert name in refused(file)
    rewrite(file, {key: value for key, value in tensors.items() if key != name})
    assert name in refused(file)
    rewrite(file, {**tensors, "extra": torch.zeros(2)})
    assert "extra" in refused(file)
    rewrite(file, {**tensors, name: tensors[name].long()})
    assert name in refused(file)
    rewrite(file, {**tensors, name: tensors[name].double()})
    assert "float64, expected torch.float32" in refused(file)
    rewrite(file, {**tensors, "classify.beta": torch.tensor(float("nan"), dtype=torch.float64)})
    assert "beta" in refused(file)


def test_a_specification_larger_than_its_file_allocates_nothing(file: Path) -> None:
    spec = json.loads(metadata_of(file)["spec"])
    spec["layers"][1]["templates"] = 10**11
    rewrite(file, spec=json.dumps(spec))
    assert "does not hold what its specification says" in refused(file)


def test_writing_is_all_or_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = file.read_bytes()
    model = simnets.create_model("nin_compact")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(simnets.SimNetsError, match=r"cannot write .*: No space left on device"):
        simnets.save(model, file)
    assert file.read_bytes() == content
    assert list(file.parent.iterdir()) == [file]


def test_writing_where_nothing_can_be_written(tmp_path: Path) -> None:
    model = simnets.create_model("nin_compact")
    with pytest.raises(simnets.SimNetsError, match="cannot write"):
        simnets.save(model, tmp_path / "no" / "such" / "folder.safetensors")
    with pytest.raises(simnets.SimNetsError, match="expected a network of simnets"):
        simnets.save(torch.nn.Linear(2, 2), tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


def test_others_may_read_what_is_written(file: Path) -> None:
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~mask


class TestWeights:
    @pytest.fixture(autouse=True)
    def box(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A box with weights of one network for two data sets."""
        monkeypatch.setattr(registry, "WEIGHTS", tmp_path)
        torch.manual_seed(3)
        self.model = simnets.create_model("simnet3_compact", 100)
        simnets.save(self.model, tmp_path / "simnet3_compact-cifar100.safetensors")
        simnets.save(
            simnets.create_model("simnet_mlpconv", input_shape=(1, 8, 8)),
            tmp_path / "simnet_mlpconv-digits.safetensors",
        )
        return tmp_path

    def test_by_name_of_the_data(self) -> None:
        model = simnets.create_model("simnet3_compact", weights="cifar100")
        assert model.spec.num_classes == 100
        assert torch.equal(
            model.layers[0].conv_similarity.filters, self.model.layers[0].conv_similarity.filters
        )
        assert simnets.create_model("simnet_mlpconv", weights="digits").spec.input_shape == (1, 8, 8)

    def test_by_path(self, box: Path) -> None:
        path = box / "simnet3_compact-cifar100.safetensors"
        assert simnets.create_model("simnet3_compact", 100, weights=path).spec == self.model.spec
        assert simnets.create_model("simnet3_compact", weights=str(path)).spec == self.model.spec

    def test_weights_that_are_not_there(self) -> None:
        message = "in the box: simnet3_compact-cifar100, simnet_mlpconv-digits"
        with pytest.raises(simnets.SimNetsError, match=message):
            simnets.create_model("simnet3_compact", weights="svhn")

    def test_weights_of_another_network(self, box: Path) -> None:
        path = box / "simnet3_compact-cifar100.safetensors"
        for arguments, message in (
            ({"name": "simnet3_compact", "num_classes": 10}, "num_classes is 100, not 10"),
            ({"name": "caffe_quick"}, "it is a deep_simnet, not a caffe_quick"),
            ({"name": "simnet2"}, "layers is"),
            ({"name": "simnet3_compact", "classify_beta": 2.0}, "classify_beta is 1.0, not 2.0"),
            ({"name": "simnet3_compact", "input_shape": (3, 16, 16)}, "input_shape is"),
        ):
            with pytest.raises(simnets.SimNetsError, match=message):
                simnets.create_model(weights=path, **arguments)
