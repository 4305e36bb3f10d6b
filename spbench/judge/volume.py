"""What was sent, before and after: exact, whatever the hardware."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spbench.results.record import Record

PHASES = ("forward", "backward", "gradients")
OPS = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce", "p2p")


def sent(records: Sequence[Record]) -> int | None:
    """Bytes of a rank in a step; of a share, which sends none, the predicted ones."""
    counts = _counts(records)
    return sum(counts[phase] for phase in PHASES if phase in counts) if counts else None


def difference(before: Sequence[Record], after: Sequence[Record]) -> str:
    """Each phase and operation that sends more or less than before, of any launch, in words."""
    return next((said for one in after if (said := _of_launch(before, [one]))), "")


def _of_launch(before: Sequence[Record], after: Sequence[Record]) -> str:
    old, new = _counts(before), _counts(after)
    shared = [name for name in old if name in new]
    said = [*_differences({n: old[n] for n in shared}, {n: new[n] for n in shared}, "bytes")]
    was, now = _calls(before), _calls(after)
    if was and now:
        said += _differences(was, now, "calls")
    return "; ".join(said)


def _differences(old: dict[str, int], new: dict[str, int], unit: str) -> Iterator[str]:
    for name in dict.fromkeys([*old, *new]):
        was, now = old.get(name, 0), new.get(name, 0)
        if was != now:
            yield f"{name} {now:,} {unit}, was {was:,} ({now - was:+,})"


def _counts(records: Sequence[Record]) -> dict[str, int]:
    """By phase and by operation, of the last launch that knows."""
    for measured in ("sent", "predicted"):
        for record in reversed(records):
            of_phase = {phase: getattr(record, f"{measured}_bytes_{phase}") for phase in PHASES}
            of_op = {op: getattr(record, f"{op}_bytes") for op in OPS}
            found = {name: count for name, count in (of_phase | of_op).items() if count is not None}
            if any(count is not None for count in of_phase.values()):
                return found
    return {}


def _calls(records: Sequence[Record]) -> dict[str, int]:
    """Calls by phase and operation, as ``forward.all_to_all=55`` says them."""
    for record in reversed(records):
        words = [word.partition("=") for word in record.collectives.split()]
        if words:
            return {name.replace(".", " "): int(n) for name, _, n in words if n.isdecimal()}
    return {}
