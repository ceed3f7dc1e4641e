"""A trained network as an ONNX file, run without PyTorch. Needs `pip install simnets[onnx]`.

Trains on digits for two epochs, exports, and lets ONNX Runtime classify the digits held out.

    python examples/export_onnx.py
"""

import json
from pathlib import Path

import onnxruntime

import simnets
from simnets.data import load_dataset
from simnets.deploy import export_onnx
from simnets.training import recipe_for, train

train("simnet_mlpconv", "digits", "runs/export", recipe_for("fast", "digits", epochs=2))
model = simnets.load("runs/export/model.safetensors")
test = load_dataset("digits", "test")

# The scores of both are compared before the file is written.
file = Path("runs/export/model.onnx")
print("\n".join(export_onnx(model, file, test=test, overwrite=True).lines()))

# From here on, nothing of torch or simnets: the file knows its classes and normalises pixels by itself.
session = onnxruntime.InferenceSession(file)
classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
scores = session.run(None, {"images": test.images[:5].numpy()})[0]
print("ONNX Runtime:", [classes[i] for i in scores.argmax(1)])
print("labels:      ", [classes[i] for i in test.labels[:5]])
