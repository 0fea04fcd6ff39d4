"""How much arithmetic an update takes, and how much of what the device could do that is (MFU).

Only what the model needs is counted: real tokens, no padding, nothing computed twice. So padding, slow kernels and
waiting all show as a lower share. It is an estimate: norms, softmax, dropout and the length table are left out (under a
hundredth for a network of the paper's size), and so are LAT's deletions.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from lath.config import NetworkSettings

PEAK_FLOPS = {"H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Dense bf16 operations a second, as the maker tells them, by a part of the device's name; the first that fits."""


def update_flops(
    network: NetworkSettings,
    target_size: int,
    source_lengths: NDArray[np.integer],
    target_lengths: NDArray[np.integer],
) -> float:
    """Floating-point operations of one update, forward and backward.

    A weight costs a multiplication and an addition for each token that meets it, and twice that backward: 6 for each
    weight and token. Attention has no weights of its own: each pair of a query and a key costs 2 x width for the score
    and 2 x width for the mixing. Lengths count EOS of the source, BOS and EOS of the target.
    """
    source, target = source_lengths.astype(np.float64), target_lengths.astype(np.float64)
    if network.kind == "AT":
        encoded, target = source, target - 1  # EOS is predicted, and never read
    else:
        encoded = source + 1  # LENGTH
    width, layers = network.width, network.decoder_layers
    encoder_weights = network.encoder_layers * (4 * width**2 + 2 * width * network.feedforward)
    memory_weights = layers * 2 * width**2  # keys and values of the source, for every decoder layer
    decoder_weights = layers * (6 * width**2 + 2 * width * network.feedforward)
    products = encoded.sum() * encoder_weights + source.sum() * memory_weights + target.sum() * decoder_weights
    pairs = network.encoder_layers * encoded @ encoded + layers * (target @ target + source @ target)
    products += 2 * width * pairs
    if network.kind == "LAT":  # the local translator: its first h and c, then 8 matrices and the output for each step
        products += target.sum() * 2 * width**2
        products += target.sum() * network.piece_length * (8 * width**2 + width * target_size)
    elif network.kind == "CMLM":  # only masked words need the output: 1 to all of them, half on the average
        products += ((target - 1) / 2).sum() * width * target_size
    else:
        products += target.sum() * width * target_size
    return 6 * float(products)


def peak_flops(device: torch.device, count: int = 1) -> float | None:
    """bf16 operations a second that `count` such devices can do at best; None for a CPU or an unknown GPU."""
    peak = known_peak(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return None if peak is None else count * peak


def known_peak(name: str) -> float | None:
    """The table's entry for the name of a device.

    >>> known_peak("NVIDIA H100 80GB HBM3")
    989000000000000.0
    """
    return next((peak for part, peak in PEAK_FLOPS.items() if part in name), None)
