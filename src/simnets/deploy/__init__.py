"""From a trained network to one that runs elsewhere, fast: exact rewrites, ONNX, C, int8, measurement."""

from simnets.deploy.benchmark import BenchmarkReport, Measurement, benchmark
from simnets.deploy.c_export import CReport, export_c
from simnets.deploy.onnx_export import ExportReport, export_onnx
from simnets.deploy.optimize import optimize
from simnets.deploy.quantise import quantise
from simnets.deploy.web_export import WebReport, export_web

__all__ = [
    "BenchmarkReport",
    "CReport",
    "ExportReport",
    "Measurement",
    "WebReport",
    "benchmark",
    "export_c",
    "export_onnx",
    "export_web",
    "optimize",
    "quantise",
]
