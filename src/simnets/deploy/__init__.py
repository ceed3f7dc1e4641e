"""From a trained network to one that runs elsewhere, fast: exact rewrites, ONNX, int8, measurement."""

from simnets.deploy.benchmark import BenchmarkReport, Measurement, benchmark
from simnets.deploy.onnx_export import ExportReport, export_onnx
from simnets.deploy.optimize import optimize
from simnets.deploy.quantise import quantise

__all__ = [
    "BenchmarkReport",
    "ExportReport",
    "Measurement",
    "benchmark",
    "export_onnx",
    "optimize",
    "quantise",
]
