#!/usr/bin/env bash
# The backward of torch's flash attention on a CPU rounds dV to bfloat16 block by block, and loses small parts.
#
# Package    torch 2.13.0 (CPU build), Python 3.11
# Behaviour  each of 128 queries attends to all 128 keys alike (q = k = 0), so that dV of any key is the mean of the output's
#            gradients over the queries. 32 of these are 1, 96 are small and alike. In bfloat16 scaled_dot_product_attention
#            returns 0.25 exactly: all that the last 96 queries add is gone. Its math backend, the mean in float32 rounded
#            once, and float32 itself have it.
# Output     flash float32 0.251757..., flash bfloat16 0.25, math bfloat16 0.251953125
# A guess    that sums over queries are kept in float32 and rounded once at the end, as flash attention's paper and its GPU
#            kernels do, so that bfloat16 gives 0.251953125.
#
# Ends with 0 while torch does so, with 1 once it does not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cat > "$folder/sums.py" <<'PYTHON'
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

QUERIES = 128
PART = 0.3 * 2.0**-7  # of each small gradient: 96 of them are 0.28 of the 32 ones' last digit
gradients = torch.full((1, 1, QUERIES, 16), PART)
gradients[:, :, :32] = 1.0


def d_v(dtype, backend):
    q, k, v = (torch.zeros(1, 1, QUERIES, 16, dtype=dtype, requires_grad=True) for _ in range(3))
    with sdpa_kernel(backend):
        F.scaled_dot_product_attention(q, k, v).backward(gradients.to(dtype))
    return v.grad[0, 0, 0, 0].item()


print("torch", torch.__version__.partition("+")[0])
print("flash float32", round(d_v(torch.float32, SDPBackend.FLASH_ATTENTION), 6))
print("flash bfloat16", d_v(torch.bfloat16, SDPBackend.FLASH_ATTENTION))
print("math bfloat16", d_v(torch.bfloat16, SDPBackend.MATH))
print("rounded once", gradients[0, 0, :, 0].to(torch.bfloat16).float().mean().bfloat16().item())
PYTHON
cat > "$folder/expected" <<'TEXT'
torch 2.13.0
flash float32 0.251758
flash bfloat16 0.25
math bfloat16 0.251953125
rounded once 0.251953125
TEXT
"$folder/venv/bin/python" "$folder/sums.py" | tee "$folder/seen"
diff "$folder/expected" "$folder/seen"
