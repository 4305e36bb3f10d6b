"""The names that papers and other programs have for strategies, for hints alone."""

from __future__ import annotations

OTHER_NAMES = {
    **dict.fromkeys(("deepspeed", "deepspeed-ulysses", "ds-ulysses"), "ulysses"),
    **dict.fromkeys(("ring", "ring-attention", "ring-self-attention"), "rsa"),
    **dict.fromkeys(("tp", "tensor-parallel", "megatron-tp"), "megatron-sp"),
}
"""Each name, and the strategy that has it, or the nearest one here."""


def own_name(name: str) -> str:
    """The name that a strategy has here; one that is not known, in small letters."""
    plain = name.strip().lower().replace("_", "-")
    return OTHER_NAMES.get(plain, plain)
