"""What `test_distributed.py` runs, in one process and in several: everything that is estimated, as arrays.

Usage: python distributed_worker.py RANK SIZE RENDEZVOUS_FILE RESULT.npz
"""

import os
import sys
import warnings

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

from simnets.errors import SimNetsError
from simnets.models import create_model, model_spec
from simnets.pretrain import (
    GeneralizedGaussianMixture,
    PretrainConfig,
    Whitening,
    pretrain_model,
    pretrain_structure,
)


def estimates(rank: int = 0, size: int = 1) -> dict[str, np.ndarray]:
    """Of this process's share of the rows, and of images that all processes are given."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    rng = np.random.default_rng(0)
    x = rng.laplace(size=(901, 5)) @ rng.normal(size=(5, 5)) + 4 * rng.integers(0, 3, (901, 1))
    mine = np.array_split(x, size)[rank]
    results = {}
    for mode in ("pca", "ica"):
        results[f"whitening {mode}"] = Whitening(3, mode=mode).fit(mine).components_
    stream = Whitening()
    for part in range(6):
        stream.partial_fit(np.array_split(x[part::6], size)[rank])
    results["stochastic ica"] = stream.components_
    for shape in (2.0, 1.0, 1.5, None):
        # 9 components of 3 clusters: some die and are revived
        mixture = GeneralizedGaussianMixture(9, shape, max_iter=5, min_usage=0.5).fit(mine)
        results[f"mixture {shape}"] = np.concatenate([mixture.means_, mixture.scales_], 1)
        results[f"likelihood {shape}"] = np.array([mixture.shape_, *mixture.lower_bounds_])
    for stochastic in (False, True):
        torch.manual_seed(0)
        model = create_model("simnet3_compact", input_shape=(1, 8, 8)).double()
        images = torch.tensor(load_digits().images[:200] / 16).unsqueeze(1)
        config = PretrainConfig(patches=1000, iterations=4, stochastic=stochastic, batch_rows=500)
        pretrain_model(model, images, config)
        for name, value in model.state_dict().items():
            results[f"model {stochastic} {name}"] = value.numpy()
    spec = model_spec("simnet_mlpconv", 10, input_shape=(1, 8, 8))
    found = pretrain_structure(images, spec, config, most_templates=3).spec.layers[0]
    results["structure"] = np.array([found.whitened, found.templates])
    images[150, 0, 3, 3] = torch.nan  # in the share of one process only; both must notice
    try:
        pretrain_model(model, images, config)
    except SimNetsError as error:
        results["error"] = np.array(len(str(error)))
    return results


if __name__ == "__main__":
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=size)
    np.savez(sys.argv[4], **estimates(rank, size))
    dist.destroy_process_group()
    # What there is to compare is written. gloo's threads can outlive the group, and then Python's exit aborts
    # now and then ("terminate called without an active exception"), as it did under torchrun (`cli._leave`).
    os._exit(0)
