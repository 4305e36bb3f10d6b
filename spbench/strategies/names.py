"""Names of strategies, with a line on each, and the names that others have for them."""

BUILT_IN = {
    "dsp": "spbench.strategies.dsp:DSP",
    "ulysses": "spbench.strategies.ulysses:Ulysses",
    "megatron-sp": "spbench.strategies.megatron_sp:MegatronSP",
    "megatron-tp": "spbench.strategies.megatron_tp:MegatronTP",
    "rsa": "spbench.strategies.rsa:RingSelfAttention",
    "ring": "spbench.strategies.ring:Ring",
    "kv-gather": "spbench.strategies.kv_gather:KVGather",
    "attention-2d": "spbench.strategies.attention_2d:Attention2D",
    "usp": "spbench.strategies.usp:USP",
}

SUMMARIES = {
    "dsp": "shards an axis that is not attended, switches between sublayers",
    "ulysses": "swaps the sharded axis for sharded heads around attention",
    "megatron-sp": "cuts the weights, gathers and scatters around each sublayer",
    "megatron-tp": "cuts the weights, sums around each sublayer, no sequence parallelism",
    "rsa": "passes K, then V round a ring, one full row of scores",
    "ring": "passes K and V round a ring, merges blocks by log-sum-exp",
    "kv-gather": "gathers K and V, each rank attends with its own queries",
    "attention-2d": "gathers queries along rows of ranks, K and V along columns",
    "usp": "shares out heads among neighbours, another exchange across them",
}

OTHER_NAMES = {
    **dict.fromkeys(("deepspeed", "deepspeed-ulysses", "ds-ulysses"), "ulysses"),
    "ring-self-attention": "rsa",
    **dict.fromkeys(("ring-attention", "zigzag", "context-parallel", "cp"), "ring"),
    **dict.fromkeys(("kv-all-gather", "all-gather", "llama3", "gather"), "kv-gather"),
    **dict.fromkeys(("attention2d", "2d", "2d-attention"), "attention-2d"),
    **dict.fromkeys(("hybrid", "ulysses-ring", "yunchang", "xdit", "2d-sp", "loongtrain"), "usp"),
    **dict.fromkeys(("tp", "tensor-parallel", "megatron", "megatron-lm"), "megatron-tp"),
}
"""Each name, and the strategy that has it, or the nearest one here; for hints alone."""


def own_name(name: str) -> str:
    """The name that a strategy has here; one that is not known, in small letters."""
    plain = name.strip().lower().replace("_", "-")
    return OTHER_NAMES.get(plain, plain)


ALONE = "ulysses"
"""A strategy that computes as one device does on one rank, for published cases without any."""
TENSOR, IN_GROUPS = "megatron-tp", "megatron-sp"
"""Strategies that cut weights, over all ranks and in groups across which another attends."""
MERGING = "ring"
"""The strategy that merges results of blocks of keys."""
GATHERING = "kv-gather"
"""A strategy that gathers keys first; a published one may then go block by block, and merge."""
UNBALANCED = f"{MERGING}:unbalanced"
"""A published ring whose causal shards are contiguous, so that its last rank has the most."""
