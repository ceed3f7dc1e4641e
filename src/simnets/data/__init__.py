"""Data sets as whole tensors: readers, checks, downloads, splits, augmentation and batches."""

from simnets.data.augmentation import Augmentation, augment
from simnets.data.checking import CheckReport, Finding, check
from simnets.data.dataset import ImageDataset, pixel_statistics, split_validation
from simnets.data.download import fetch
from simnets.data.epoch import batches, count_batches
from simnets.data.images import read_image
from simnets.data.load import DATASETS, data_root, load_dataset

__all__ = [
    "DATASETS",
    "Augmentation",
    "CheckReport",
    "Finding",
    "ImageDataset",
    "augment",
    "batches",
    "check",
    "count_batches",
    "data_root",
    "fetch",
    "load_dataset",
    "pixel_statistics",
    "read_image",
    "split_validation",
]
