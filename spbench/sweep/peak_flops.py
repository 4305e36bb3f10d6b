"""Peak rates of GPUs, for MFU: dense bf16 and fp16 tensor rates by product name.

From the vendors' data sheets, without sparsity. A GPU that is not in the table has no MFU, unless
``--peak-tflops`` gives the figure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

DENSE_16_BIT_TFLOPS = {
    "GB200": 2500.0,
    "B200": 2250.0,
    "H200": 989.0,
    "H800": 989.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "A100": 312.0,
    "A100 PCIe": 312.0,
    "RTX 4090": 165.2,
}
BESIDE = re.compile(r"NVIDIA|GeForce|SXM\d?|HBM\w*|\d+GB", re.ASCII)
"""Words beside a product's name: vendor, module, memory. Any other word (NVL, Laptop GPU) means
another product."""


def known_peak(gpus: Sequence[Mapping[str, Any]], dtype: str) -> float | None:
    """Tflop/s of one GPU of this machine in ``dtype``; None if that is not known."""
    if not gpus or dtype not in ("bfloat16", "float16"):
        return None
    words = re.split(r"[ -]", str(gpus[0]["name"]))
    product = " ".join(word for word in words if not BESIDE.fullmatch(word))
    return DENSE_16_BIT_TFLOPS.get(product.replace("PCIE", "PCIe"))
