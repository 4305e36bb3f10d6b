#!/usr/bin/env bash
# Three keys of a config.json that diffusers and transformers write are sizes or norms which the class that wrote them has not.
#
# Package    diffusers 0.42.1, transformers 5.24.0, torch 2.13.0 (CPU build, meta device), Python 3.11
# Behaviour  DeepseekV3Config writes head_dim 64. No head has 64 numbers: queries and keys have 192, values 128; 64 is the part
#            of a key that positions turn, and the rotary embedding looks for it under that name. ZImageTransformer2DModel
#            writes n_kv_heads 10 beside n_heads 30, and makes 30 heads of keys. WanTransformer3DModel writes qk_norm null, and
#            norms queries and keys. Nothing warns.
# Output     DeepseekV3Config writes head_dim 64: queries and keys have 192, values 128
#            ZImageTransformer2DModel writes n_kv_heads 10: keys have 30 heads
#            WanTransformer3DModel writes qk_norm None: queries have RMSNorm
# A guess    that head_dim times num_attention_heads is the width of attention, as in Llama and Qwen; that fewer key heads in the
#            file are grouped queries; that null is no norm.
#
# Ends with 0 while they do so, with 1 once they do not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 diffusers==0.42.1 transformers==5.24.0
cat > "$folder/sizes.py" <<'PYTHON'
import json
import sys

import torch
from diffusers import WanTransformer3DModel, ZImageTransformer2DModel
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM


def written(what):
    (what.save_config if hasattr(what, "save_config") else what.save_pretrained)(sys.argv[1])
    with open(f"{sys.argv[1]}/config.json") as file:
        return json.load(file)


config = DeepseekV3Config(num_hidden_layers=1, vocab_size=8)
with torch.device("meta"):
    latent = DeepseekV3ForCausalLM(config).model.layers[0].self_attn
    image = ZImageTransformer2DModel(n_layers=1, n_refiner_layers=1, n_kv_heads=10)
    film = WanTransformer3DModel(num_layers=1, qk_norm=None)
heads = config.num_attention_heads
keys, values = latent.q_b_proj.out_features // heads, latent.o_proj.in_features // heads
print(f"DeepseekV3Config writes head_dim {written(config)['head_dim']}:", end=" ")
print(f"queries and keys have {keys}, values {values}")
said = written(image)
key_heads = image.layers[0].attention.to_k.out_features // (said["dim"] // said["n_heads"])
print(f"ZImageTransformer2DModel writes n_kv_heads {said['n_kv_heads']}: keys have {key_heads} heads")
norm = type(film.blocks[0].attn1.norm_q).__name__
print(f"WanTransformer3DModel writes qk_norm {written(film)['qk_norm']}: queries have {norm}")
PYTHON
"$folder/venv/bin/python" "$folder/sizes.py" "$folder/written" 2> "$folder/errors" | tee "$folder/seen"
cat > "$folder/expected" <<'TEXT'
DeepseekV3Config writes head_dim 64: queries and keys have 192, values 128
ZImageTransformer2DModel writes n_kv_heads 10: keys have 30 heads
WanTransformer3DModel writes qk_norm None: queries have RMSNorm
TEXT
diff "$folder/expected" "$folder/seen"
