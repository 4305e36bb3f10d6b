"""Language models of transformers: what each ``config.json`` says, in the fields of a workload.

They have one axis, causal attention with grouped keys and a gated mlp. A mixture of experts is
written as what one token takes: its experts, and those that are shared, as one mlp as wide as all
of them.

Multi-head latent attention (DeepSeek-V2, 2024, section 2.1) is written as its scores and results
have it, with keys and values of all heads and of two sizes: so ranks share it in training. The
vector of a position that all of them are made of, and the two projections around each such vector,
are left out.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from spbench.workload.block import MAX_DEPTH
from spbench.workload.fields import DTYPE_BYTES
from spbench.workload.model_config import Config, Model, linear, mlp_ratio

MOST_LAYERS = 8
"""Layers of a model that are one block of a workload, where they take turns."""
TOKENS = 8192
"""Tokens of a sequence, where the model's context is not shorter."""
GATES = ("silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh")
"""Activations of a gate; all take the same three products as swiglu."""
LATENT_KEYS = "kv_lora_rank"
"""The key of multi-head latent attention, in all models that have it."""
LATENT_MODELS = ("deepseek_v2", "deepseek_v3", "kimi_k2")


def language_model(config: Config) -> Model:
    """A decoder of transformers. Raises WorkloadError for values that no workload can say."""
    hidden, depth = config.size("hidden_size"), config.size("num_hidden_layers")
    heads = _heads(config)
    if depth > MAX_DEPTH:
        raise config.error(f"num_hidden_layers is {depth}; at most {MAX_DEPTH} are planned for")
    tokens, comment = _sequence(config)
    total, left_out, differs = _parameters(config, heads)
    fields: dict[str, Any] = {"axes": {"sequence": tokens}, "hidden": hidden}
    fields |= {"heads": heads.queries}
    fields |= {"kv_heads": heads.keys} if heads.keys != heads.queries else {}
    fields |= {"head_dim": heads.size} if heads.queries * heads.size != hidden else {}
    fields |= {"v_head_dim": heads.value_size} if heads.value_size != heads.size else {}
    layers = [*zip(_columns(config, depth), _windows(config, depth, tokens), strict=True)]
    stacks = _stacks([_layer(mlp_ratio(columns, hidden), window) for columns, window in layers])
    fields |= stacks[0] if len(stacks) == 1 else {"stacks": stacks}
    fields |= {"norm": "rms", "positions": "rotary"}
    fields |= {"qk_norm": True} if _has_qk_norm(config) else {}
    fields |= _dtype(config)
    comments = {"axes": comment}
    return Model(fields=fields, total=total, left_out=left_out, comments=comments, differs=differs)


class Heads(NamedTuple):
    """Heads of self-attention, and their sizes."""

    queries: int
    keys: int
    size: int
    value_size: int


def _is_latent(config: Config) -> bool:
    return config.has(LATENT_KEYS)


def _heads(config: Config) -> Heads:
    hidden, queries = config.size("hidden_size"), config.size("num_attention_heads")
    if _is_latent(config):
        # Whatever head_dim and num_key_value_heads say, which these classes do not follow.
        size = config.size("qk_nope_head_dim") + config.size("qk_rope_head_dim")
        return Heads(queries, queries, size, config.size("v_head_dim"))
    size = config.size("head_dim", default=max(1, hidden // queries))
    if not config.has("head_dim") and hidden % queries:
        known = f"hidden_size {hidden} is not a multiple of num_attention_heads {queries}"
        raise config.error(f'{known}; write "head_dim": N as the model has it')
    return Heads(queries, config.size("num_key_value_heads", default=queries), size, size)


def _sequence(config: Config) -> tuple[int, str]:
    """Tokens of a sequence, and what to say of them."""
    context = config.size("max_position_embeddings", default=TOKENS)
    said = f"not in the config: tokens of a sequence, at most {context} (max_position_embeddings)"
    return min(TOKENS, context), said


def _windows(config: Config, depth: int, tokens: int) -> list[int]:
    """Positions that a token attends to at most in each block; 0 where it attends to all."""
    is_used = config.flag("use_sliding_window", default=True)
    window = config.count("sliding_window") if is_used else 0
    window = window if window < tokens else 0
    kinds = config.data.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != depth:
        has_any = not isinstance(kinds, list) or "sliding_attention" in kinds
        return [window if has_any else 0] * depth
    return [window if kind == "sliding_attention" else 0 for kind in kinds]


def _layer(ratio: float, window: int) -> list[dict[str, Any]]:
    """The sublayers of one block of the model."""
    attention: dict[str, Any] = {"attention": "sequence", "causal": True}
    attention |= {"window": window} if window else {}
    return [attention, {"mlp": ratio, "activation": "swiglu"}]


def _stacks(layers: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Stacks of blocks: of a few layers that repeat, or runs of equal ones."""
    for period in range(2, MOST_LAYERS + 1):
        times, rest = divmod(len(layers), period)
        if times > 1 and not rest and layers == layers[:period] * times and layers[0] != layers[1]:
            return [{"depth": times, "block": [*itertools.chain(*layers[:period])]}]
    runs = ((layer, len(list(same))) for layer, same in itertools.groupby(layers))
    return [{"depth": count, "block": layer} for layer, count in runs]


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


def _attention(config: Config, heads: Heads) -> int:
    """Parameters of the projections and norms of an attention."""
    hidden, width, keys = (
        config.size("hidden_size"),
        heads.queries * heads.size,
        heads.keys * heads.size,
    )
    kind = config.data["model_type"]
    has_biases = config.flag("attention_bias", default=kind == "qwen2")
    # Llama's switch is for the projection out, too; Qwen 2 and GLM have no bias there.
    has_bias_out = has_biases and kind in ("llama", "qwen3", "qwen3_moe", *LATENT_MODELS)
    out = linear(heads.queries * heads.value_size, hidden, has_bias_out)
    if not _is_latent(config):
        norms = 2 * heads.size if _has_qk_norm(config) else 0
        return linear(hidden, width + 2 * keys, has_biases) + out + norms
    latent, turned = config.size(LATENT_KEYS), config.size("qk_rope_head_dim")
    # Down to the vector and the part of keys that is turned, a norm of the vector, and up again.
    up = heads.queries * (heads.size - turned + heads.value_size)
    into = linear(hidden, latent + turned, has_biases) + latent + latent * up
    if rank := config.count("q_lora_rank"):
        return into + out + linear(hidden, rank, has_biases) + rank + rank * width
    return into + out + hidden * width


def _parameters(config: Config, heads: Heads) -> tuple[int, dict[str, int], list[str]]:
    """Parameters of the whole model; of what the workload has not; sentences on the experts."""
    hidden, depth = config.size("hidden_size"), config.size("num_hidden_layers")
    vocabulary = hidden * config.size("vocab_size")
    has_head = not config.flag("tie_word_embeddings") and _is_causal_lm(config)
    embeddings = 2 * vocabulary if has_head else vocabulary
    attention = _attention(config, heads)
    block = attention + 2 * hidden
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
    total = depth * block + mlps + hidden + sum(left_out.values())
    if _is_latent(config):
        whole = (heads.queries + heads.keys) * (heads.size + heads.value_size)
        left_out["projections through latent vectors, which here are whole"] = depth * (
            attention - hidden * whole
        )
        differs.append(
            f"All keys of {heads.size} numbers a head and values of {heads.value_size} are made "
            f"of one vector of {config.size(LATENT_KEYS)} a position, and are here projections of "
            "their own: scores, results and what all-to-alls, rings and gathers of keys and values "
            "send are the model's; what exchanges that vector instead is not here."
        )
    if config.data["model_type"] in ("glm4_moe", *LATENT_MODELS):
        differs.append("It turns a part of each head by position, here all is turned.")
    if config.one_of("hidden_act", GATES, "silu") not in ("silu", "swish"):
        differs.append(f"The gate of its mlp is {config.data['hidden_act']}, here silu.")
    return total, left_out, differs


def _is_causal_lm(config: Config) -> bool:
    names = config.data.get("architectures")
    if not isinstance(names, list) or not names:
        return True
    return str(names[0]).endswith("ForCausalLM")


LANGUAGE_MODELS: Mapping[str, Callable[[Config], Model]] = dict.fromkeys(
    ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "glm4_moe", *LATENT_MODELS),
    language_model,
)
"""By ``model_type``."""
