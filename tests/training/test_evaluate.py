import json

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss, recall_score

from simnets.data import ImageDataset
from simnets.errors import SimNetsError
from simnets.models import create_model
from simnets.training import evaluate, scores_of
from simnets.training.evaluate import summarise


@pytest.fixture
def scored():
    generator = torch.Generator().manual_seed(0)
    scores = 2 * torch.randn(500, 4, generator=generator)
    labels = torch.randint(4, (500,), generator=generator)
    labels[:300] = scores[:300].argmax(1)
    return scores, labels


def test_figures_agree_with_scikit_learn(scored):
    scores, labels = scored
    found = summarise(scores, labels, ("a", "b", "c", "d"))
    predicted = scores.argmax(1).numpy()
    assert found.accuracy == pytest.approx(accuracy_score(labels, predicted))
    assert found.loss == pytest.approx(log_loss(labels, scores.double().softmax(1)))
    assert np.array_equal(found.confusion, confusion_matrix(labels, predicted))
    assert found.per_class == pytest.approx(recall_score(labels, predicted, average=None))
    assert found.images == 500


def test_calibration_error_agrees_with_a_plain_loop(scored):
    scores, labels = scored
    probabilities = scores.double().softmax(1).numpy()
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels.numpy()
    expected = 0.0
    for b in range(15):
        inside = (confidence >= b / 15) & (confidence < (b + 1) / 15 if b < 14 else confidence <= 1)
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert summarise(scores, labels, tuple("abcd")).calibration_error == pytest.approx(expected, rel=1e-5)


def test_class_without_images_is_nan_and_null_in_json():
    found = summarise(torch.eye(3)[:2], torch.tensor([0, 1]), ("a", "b", "c"))
    assert np.isnan(found.per_class[2])
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["per_class"] == {
        "a": 1.0,
        "b": 1.0,
        "c": None,
    }


@pytest.fixture
def model():
    model = create_model("convnet1_50", num_classes=3, input_shape=(1, 8, 8))
    model.classes = ("x", "y", "z")
    return model


def dataset(classes=("x", "y", "z"), shape=(1, 8, 8)):
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(256, (7, *shape), generator=generator, dtype=torch.uint8)
    return ImageDataset(images, torch.arange(7) % len(classes), classes, "mine")


def test_evaluate_runs_in_evaluation_mode_and_restores_training(model):
    model.train()
    data = dataset()
    found = evaluate(model, data)
    assert model.training
    model.eval()
    with torch.no_grad():
        expected = model(data.images)
    torch.testing.assert_close(scores_of(model, data.images), expected)
    assert found.accuracy == pytest.approx(float((expected.argmax(1) == data.labels).double().mean()))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (dataset(classes=("x", "y", "z", "w")), "4 classes.*3"),
        (dataset(classes=("x", "z", "y")), "class 1 .*'z'.*'y'"),
        (dataset(shape=(1, 9, 8)), "1×9×8.*1×8×8"),
    ],
)
def test_other_data_than_the_network_knows_is_refused(model, data, words):
    with pytest.raises(SimNetsError, match=words):
        evaluate(model, data)
