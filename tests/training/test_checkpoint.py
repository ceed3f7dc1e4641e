import errno
import os

import pytest
import torch

from simnets.errors import SimNetsError
from simnets.training import Checkpoint, Checkpoints


def checkpoint(step):
    return Checkpoint(
        {"w": torch.full((3,), float(step)), "n": torch.tensor(step)}, {"step": step, "x": [0.1, None]}
    )


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints")


def test_unpack_inverts_pack_in_every_bit():
    odd = torch.tensor([0.1, -0.0, 1e-45, torch.inf, torch.nan])
    shared = torch.arange(4)
    before = Checkpoint(
        {"a/odd": odd, "b": odd.bfloat16(), "c": shared, "d": shared, "scalar": torch.tensor(2.5)},
        {"step": 3, "sums": [0.1 + 0.2], "nested": {"ü": [1, None]}},
    )
    after = Checkpoint.unpack(before.pack())
    assert after.state == before.state
    assert after.tensors.keys() == before.tensors.keys()
    for name, value in before.tensors.items():
        assert after.tensors[name].dtype == value.dtype
        raw_before, raw_after = (t.reshape(-1).view(torch.uint8) for t in (value, after.tensors[name]))
        assert torch.equal(raw_before, raw_after)


def test_newest_is_read_and_two_are_kept(checkpoints):
    assert checkpoints.read(pytest.fail) is None
    for step in (5, 40, 300):
        checkpoints.write(checkpoint(step))
    assert sorted(p.name[:13] for p in checkpoints.folder.iterdir()) == ["step-00000040", "step-00000300"]
    found = checkpoints.read(pytest.fail)
    assert found.state["step"] == 300
    assert found.tensors["w"].tolist() == [300.0] * 3


@pytest.mark.parametrize("harm", ["alter", "cut", "empty", "header"])
def test_damaged_one_is_named_and_the_one_before_used(checkpoints, harm):
    checkpoints.write(checkpoint(1))
    newest = checkpoints.write(checkpoint(2))
    data = bytearray(newest.read_bytes())
    if harm == "alter":
        data[-1] ^= 1
    elif harm == "header":
        data[20] ^= 1
    else:
        del data[0 if harm == "empty" else -5 :]
    newest.write_bytes(data)
    said = []
    assert checkpoints.read(said.append).state["step"] == 1
    assert len(said) == 1
    assert newest.name in said[0]
    # The sound one stays while newer ones come.
    checkpoints.write(checkpoint(3))
    assert checkpoints.read(pytest.fail).state["step"] == 3


def test_all_damaged_gives_none(checkpoints):
    for step in (1, 2):
        checkpoints.write(checkpoint(step)).write_bytes(b"")
    said = []
    assert checkpoints.read(said.append) is None
    assert len(said) == 2


def test_rest_of_an_interrupted_write_is_swept_away(checkpoints):
    path = checkpoints.write(checkpoint(1))
    rest = path.with_name("step-00000002.0123456789abcdef.safetensors.tmp")
    rest.write_bytes(path.read_bytes()[:50])
    assert checkpoints.read(pytest.fail).state["step"] == 1
    assert not rest.exists()


def test_full_disk_is_one_line_and_loses_nothing(checkpoints, monkeypatch):
    checkpoints.write(checkpoint(1))

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            SimNetsError, match=r"^cannot write .*step-00000002.*No space left on device[^\n]*$"
        ):
            checkpoints.write(checkpoint(2))
    assert [p.name[:13] for p in checkpoints.folder.iterdir()] == ["step-00000001"]
    assert checkpoints.read(pytest.fail).state["step"] == 1


def test_clear_removes_everything(checkpoints):
    checkpoints.write(checkpoint(1))
    checkpoints.write(checkpoint(2)).write_bytes(b"")
    checkpoints.read(lambda text: None)
    checkpoints.clear()
    assert not checkpoints.folder.exists()
