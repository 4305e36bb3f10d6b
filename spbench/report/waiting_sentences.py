"""What strategies wait for, in words: below the table of ``run`` and of ``compare``."""

from collections.abc import Iterator, Sequence

from spbench.analysis.waiting import Waiting, link_bound
from spbench.report.units import gigabytes_per_s, milliseconds, percent
from spbench.text import counted


def waiting_sentences(cases: Sequence[Waiting]) -> list[str]:
    """The link-bound strategies, those below their links, and those slower than one rank."""
    several = len({case.panel for case in cases}) > 1
    sentences = [*_link_bound(cases), *_below_links(cases), *_slower_than_one(cases)]
    return [f"{panel}: {text}" if several else text for panel, text in sentences]


def _link_bound(cases: Sequence[Waiting]) -> Iterator[tuple[str, str]]:
    for (panel, ranks), group in link_bound(cases).items():
        each = ", ".join(
            f"{case.strategy} ({milliseconds(case.exposed_ms)} of {milliseconds(case.step_ms)} ms"
            f"{_noisy(case)})"
            for case in group
        )
        on = f"On {counted(ranks, 'rank')} {each} {'is' if len(group) == 1 else 'are'} link-bound"
        yield panel, f"{on}: at least half of a step waits for communication"


def _below_links(cases: Sequence[Waiting]) -> Iterator[tuple[str, str]]:
    for case in cases:
        if not case.is_below_links or not case.links_ms or not case.exposed_ms:
            continue
        rate, of_links = (
            gigabytes_per_s(case.sent_bytes / ms * 1e3) for ms in (case.exposed_ms, case.links_ms)
        )
        share = percent(case.links_ms / case.exposed_ms)
        yield (
            case.panel,
            f"{_name(case)}{_noisy(case)} sends {case.sent_bytes / 1e6:,.3g} MB a step and waits "
            f"{milliseconds(case.exposed_ms)} ms: {rate} GB/s, {share} of what doctor --links "
            f"achieved on {case.measured_utc[:10]} ({of_links}), so the links alone are not why",
        )


def _slower_than_one(cases: Sequence[Waiting]) -> Iterator[tuple[str, str]]:
    for case in cases:
        one = case.to_one_rank
        if one is None or one.ratio is None or not case.is_slower_than_one:
            continue
        if one.low is None or one.high is None:
            sure = f"no confidence interval: {counted(one.launches, 'launch')}"
        else:
            sure = f"{one.low:.2f} to {one.high:.2f}"
        single = "one GPU" if case.device == "cuda" else "one rank"
        takes = f"a step takes {one.ratio:.2f}x as long ({sure})"
        yield case.panel, f"{_name(case)} is slower than {single}: {takes}"


def _name(case: Waiting) -> str:
    return f"{case.strategy} on {counted(case.ranks, 'rank')}"


def _noisy(case: Waiting) -> str:
    return ", in noisy launches" if case.is_noisy else ""
