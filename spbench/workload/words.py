"""Counts as people read them."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """1 rank, 2 ranks, 1,024 ranks."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
