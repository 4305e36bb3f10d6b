"""Language models of transformers: what each ``config.json`` says, in the fields of a workload.

They have one axis, causal attention with grouped keys and a gated mlp. A mixture of experts is
written as what one token takes: its experts, and those that are shared, as one mlp as wide as all
of them.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from spbench.workload.block import MAX_DEPTH
from spbench.workload.fields import DTYPE_BYTES
from spbench.workload.model_config import Config, Model, linear, mlp_ratio

TOKENS = 8192
"""Tokens of a sequence, where the model's context is not shorter."""
GATES = ("silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh")
"""Activations of a gate; all take the same three products as swiglu."""
LATENT_KEYS = "kv_lora_rank"
"""The key of multi-head latent attention, in all models that have it."""


def language_model(config: Config) -> Model:
    """A decoder of transformers. Raises WorkloadError for attention that no workload can say."""
    _refuse_latent_attention(config)
    hidden, depth = config.size("hidden_size"), config.size("num_hidden_layers")
    heads = config.size("num_attention_heads")
    key_heads = config.size("num_key_value_heads", default=heads)
    head_dim = config.size("head_dim", default=max(1, hidden // heads))
    if not config.has("head_dim") and hidden % heads:
        known = f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
        raise config.error(f'{known}; write "head_dim": N as the model has it')
    if depth > MAX_DEPTH:
        raise config.error(f"num_hidden_layers is {depth}; at most {MAX_DEPTH} are planned for")
    tokens, comment = _sequence(config)
    total, left_out, differs = _parameters(config, heads, key_heads, head_dim)
    fields: dict[str, Any] = {"axes": {"sequence": tokens}, "hidden": hidden, "heads": heads}
    fields |= {"kv_heads": key_heads} if key_heads != heads else {}
    fields |= {"head_dim": head_dim} if heads * head_dim != hidden else {}
    attention = {"attention": "sequence", "causal": True}
    stacks = [
        {
            "depth": len(list(blocks)),
            "block": [attention, {"mlp": mlp_ratio(columns, hidden), "activation": "swiglu"}],
        }
        for columns, blocks in itertools.groupby(_columns(config, depth))
    ]
    fields |= stacks[0] if len(stacks) == 1 else {"stacks": stacks}
    fields |= {"norm": "rms", "positions": "rotary"}
    fields |= {"qk_norm": True} if _has_qk_norm(config) else {}
    fields |= _dtype(config)
    comments = {"axes": comment}
    return Model(fields=fields, total=total, left_out=left_out, comments=comments, differs=differs)


def _refuse_latent_attention(config: Config) -> None:
    """Its keys and values come from one vector of a position, and values are narrower than keys."""
    if not config.has(LATENT_KEYS):
        return
    latent, turned = config.size(LATENT_KEYS), config.size("qk_rope_head_dim")
    keys = config.size("qk_nope_head_dim") + turned
    values, heads = config.size("v_head_dim"), config.size("num_attention_heads")
    mean = (keys + values) // 2
    raise config.error(
        f"{config.architecture} has multi-head latent attention, which a workload cannot say: "
        f"queries and keys of {keys} numbers a head and values of {values}, all keys and values "
        f"made of one vector of {latent + turned} a position, which is what ranks would send. "
        f"The nearest form by hand is heads: {heads}, head_dim: {mean} ('spbench init my-model'): "
        "it has the bytes of all-to-alls and the operations of the scores, and says neither what "
        "rings and gathers of that vector send nor the narrower projections"
    )


def _sequence(config: Config) -> tuple[int, str]:
    """Tokens of a sequence, and what to say of them."""
    context = config.size("max_position_embeddings", default=TOKENS)
    said = f"not in the config: tokens of a sequence, at most {context} (max_position_embeddings)"
    window = _window(config)
    if window and window < min(context, TOKENS):
        return window, f"{said}; as long as its sliding window, which a workload cannot say"
    return min(TOKENS, context), said


def _window(config: Config) -> int:
    """Positions that a token attends to at most; 0 where all blocks attend to all."""
    is_used = config.flag("use_sliding_window", default=True)
    kinds = config.data.get("layer_types")
    if isinstance(kinds, list) and "sliding_attention" not in kinds:
        is_used = False
    return config.count("sliding_window") if is_used else 0


def _has_qk_norm(config: Config) -> bool:
    return config.data["model_type"].startswith("qwen3") or config.flag("use_qk_norm")


def _dtype(config: Config) -> dict[str, str]:
    """The number format of the weights, where a workload has it."""
    dtype = config.data.get("dtype", config.data.get("torch_dtype"))
    return {"dtype": dtype} if isinstance(dtype, str) and dtype in DTYPE_BYTES else {}


# Experts


def _experts(config: Config) -> int:
    """Experts of a block that has some; 0 for a dense model."""
    return config.size("num_experts", "num_local_experts", "n_routed_experts", default=0)


def _is_dense(config: Config, block: int) -> bool:
    """Whether a block's mlp is one for all tokens."""
    if not _experts(config):
        return True
    apart = config.data.get("mlp_only_layers") or []
    if not isinstance(apart, list):
        raise config.error(f"mlp_only_layers is {apart!r}; write a list of blocks, as []")
    step = config.size("decoder_sparse_step", default=1)
    is_early = block < config.count("first_k_dense_replace")
    return is_early or block in apart or (block + 1) % step > 0


def _expert_columns(config: Config) -> int:
    return config.size("moe_intermediate_size", "intermediate_size")


def _columns(config: Config, depth: int) -> list[int]:
    """Columns of each block's mlp: of one that is dense, or of all experts that a token takes."""
    columns = [config.size("intermediate_size")] * depth
    for block in range(depth):
        if not _is_dense(config, block):
            taken = config.size("num_experts_per_tok") + config.count("n_shared_experts")
            columns[block] = taken * _expert_columns(config)
    return columns


def _parameters(
    config: Config, heads: int, key_heads: int, head_dim: int
) -> tuple[int, dict[str, int], list[str]]:
    """Parameters of the whole model; of what the workload has not; sentences on the experts."""
    hidden, depth = config.size("hidden_size"), config.size("num_hidden_layers")
    vocabulary = hidden * config.size("vocab_size")
    has_head = not config.flag("tie_word_embeddings") and _is_causal_lm(config)
    embeddings = 2 * vocabulary if has_head else vocabulary
    width, keys = heads * head_dim, key_heads * head_dim
    has_biases = config.flag("attention_bias", default=config.data["model_type"] == "qwen2")
    # Llama's switch is for the projection out, too; Qwen 2 and GLM have no bias there.
    has_bias_out = has_biases and config.data["model_type"] in ("llama", "qwen3", "qwen3_moe")
    block = linear(hidden, width + 2 * keys, has_biases) + linear(width, hidden, has_bias_out)
    block += 2 * hidden + (2 * head_dim if _has_qk_norm(config) else 0)
    columns = _columns(config, depth)
    mlps = 3 * hidden * sum(columns)
    if config.flag("mlp_bias"):
        mlps += 2 * sum(columns) + depth * hidden
    left_out = {"embedding and output of the vocabulary": embeddings}
    differs = []
    if experts := _experts(config):
        taken, expert = config.size("num_experts_per_tok"), 3 * hidden * _expert_columns(config)
        with_experts = sum(not _is_dense(config, block) for block in range(depth))
        others = with_experts * ((experts - taken) * expert + hidden * experts)
        left_out["router, and experts that a token does not take"] = others
        shared = config.count("n_shared_experts")
        with_shared = f" and {shared} shared" if shared else ""
        differs.append(
            f"A token takes {taken} of {experts} experts{with_shared}, here one mlp as wide as "
            "those; the exchange of tokens between ranks that share out experts is not here."
        )
    if config.data["model_type"] == "glm4_moe":
        differs.append("It turns a part of each head by position, here all is turned.")
    if config.one_of("hidden_act", GATES, "silu") not in ("silu", "swish"):
        differs.append(f"The gate of its mlp is {config.data['hidden_act']}, here silu.")
    total = depth * block + mlps + hidden + sum(left_out.values())
    return total, left_out, differs


def _is_causal_lm(config: Config) -> bool:
    names = config.data.get("architectures")
    if not isinstance(names, list) or not names:
        return True
    return str(names[0]).endswith("ForCausalLM")


LANGUAGE_MODELS: Mapping[str, Callable[[Config], Model]] = dict.fromkeys(
    ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "glm4_moe"), language_model
)
"""By ``model_type``."""
