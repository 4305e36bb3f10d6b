"""What was sent, before and after: exact, whatever the hardware."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from spbench.results.record import Record

PHASES = ("forward", "backward", "gradients")
OPS = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce", "p2p")
Counts = dict[str, int]


def both(before: Sequence[Record], after: Sequence[Record]) -> tuple[int | None, int | None]:
    """Bytes of a rank in a step."""
    old, new = (
        sum(side[phase] for phase in PHASES if phase in side) if side else None
        for side in _counts(before, after)
    )
    return old, new


def difference(before: Sequence[Record], after: Sequence[Record]) -> str:
    """Each phase and operation that sends more or less than before, of any launch, in words."""
    return next((said for one in after if (said := _of_launch(before, [one]))), "")


def _of_launch(before: Sequence[Record], after: Sequence[Record]) -> str:
    old, new = _counts(before, after)
    shared = [name for name in old if name in new]
    said = [*_differences({n: old[n] for n in shared}, {n: new[n] for n in shared}, "bytes")]
    was, now = _calls(before), _calls(after)
    if was and now:
        said += _differences(was, now, "calls")
    return "; ".join(said)


def _differences(old: Counts, new: Counts, unit: str) -> Iterator[str]:
    for name in dict.fromkeys([*old, *new]):
        was, now = old.get(name, 0), new.get(name, 0)
        if was != now:
            yield f"{name} {now:,} {unit}, was {was:,} ({now - was:+,})"


def _counts(before: Sequence[Record], after: Sequence[Record]) -> tuple[Counts, Counts]:
    """What was sent, if it is known of both; else what was to be sent, as of a share, which sends
    nothing, or of a launch that was wrong before anything was counted. Never the one against the
    other: a call too many is in the first alone."""
    sent, predicted = ((kind(before), kind(after)) for kind in (_sent, _predicted))
    return predicted if all(predicted) and not all(sent) else sent


def _sent(records: Sequence[Record]) -> Counts:
    """By phase and by operation, of the last launch that knows."""
    found = _known(records, {f"sent_bytes_{phase}": phase for phase in PHASES})
    return found and found | _known(records, {f"{op}_bytes": op for op in OPS})


def _predicted(records: Sequence[Record]) -> Counts:
    return _known(records, {f"predicted_bytes_{phase}": phase for phase in PHASES})


def _known(records: Sequence[Record], columns: Mapping[str, str]) -> Counts:
    """Of the last launch that has any of the columns."""
    for record in reversed(records):
        every = {name: getattr(record, column) for column, name in columns.items()}
        if found := {name: count for name, count in every.items() if count is not None}:
            return found
    return {}


def _calls(records: Sequence[Record]) -> Counts:
    """Calls by phase and operation, as ``forward.all_to_all=55`` says them."""
    for record in reversed(records):
        words = [word.partition("=") for word in record.collectives.split()]
        if words:
            return {name.replace(".", " "): int(n) for name, _, n in words if n.isdecimal()}
    return {}
