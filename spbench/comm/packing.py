"""Flat buffers for wires that need them: parts of tensors together in memory, and apart again.

Parts that already lie one behind the other are their own flat buffer and are not copied. So
with the sharded axis outermost a switch packs or unpacks once, never both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor


def as_flat(parts: Sequence[Tensor]) -> Tensor | None:
    """The one flat tensor that ``parts`` already are in memory; None if they are not."""
    at = parts[0].data_ptr()
    for part in parts:
        if not part.is_contiguous() or part.data_ptr() != at:
            return None
        at += part.nbytes
    return parts[0].as_strided((sum(part.numel() for part in parts),), (1,))


def pack(parts: Sequence[Tensor]) -> Tensor:
    """A flat tensor of all parts, in order; a copy only if they do not lie so already."""
    flat = as_flat(parts)
    if flat is None:
        flat, views = _views_of_new(parts)
        for view, part in zip(views, parts, strict=True):
            view.copy_(part)
    return flat


def unpacked(parts: Sequence[Tensor]) -> tuple[Tensor, Callable[[], None]]:
    """A flat tensor to receive into, and what brings its content to ``parts`` afterwards."""
    flat = as_flat(parts)
    if flat is not None:
        return flat, lambda: None
    flat, views = _views_of_new(parts)

    def unpack() -> None:
        for part, view in zip(parts, views, strict=True):
            part.copy_(view)

    return flat, unpack


def _views_of_new(parts: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    counts = [part.numel() for part in parts]
    flat = parts[0].new_empty(sum(counts))
    pieces = flat.split(counts)
    return flat, [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]
