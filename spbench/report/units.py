"""Figures as people read them. Units are converted here, when printing, and nowhere else."""

BLANK = "-"
NEXT = 0.9995
"""Share of the next unit from which three digits would round up to 1000."""


def milliseconds(ms: float | None) -> str:
    return BLANK if ms is None else f"{ms:,.0f}" if abs(ms) >= NEXT * 1e3 else f"{ms:.3g}"


SIZES = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}


def size_unit(least: float) -> str:
    """The largest unit in which ``least`` bytes are half a unit or more."""
    return next((unit for unit, size in SIZES.items() if least >= size / 2), "KiB")


def size_in(unit: str, count: float) -> str:
    """``count`` bytes as a figure, to be read with its unit."""
    value = count / SIZES[unit]
    return "0" if count == 0 else f"{value:,.0f}" if value >= NEXT * 1e3 else f"{value:.3g}"


def size(unit: str, count: float) -> str:
    """``count`` bytes with their unit; in KiB where they are less than a tenth of ``unit``."""
    shown = unit if count >= SIZES[unit] / 10 or count == 0 else "KiB"
    return f"{size_in(shown, count)} {shown}"


def mebibytes(count: float | None) -> str:
    return BLANK if count is None else size_in("MiB", count)


def count_of(number: float | None) -> str:
    """1234567 as 1.23M."""
    if number is None:
        return BLANK
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= NEXT * size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def ratio(value: float | None) -> str:
    return BLANK if value is None else f"{value:.2f}x"


def is_change(ratio: float) -> bool:
    """Whether a ratio differs from 1 by as much as is printed, which is 0.1 %."""
    return abs(ratio - 1) >= 5e-4


def change(value: float) -> str:
    """A ratio as a difference: 1.034 is +3.4 %."""
    return f"{_percent_more(value)} %"


def changes(low: float, high: float) -> str:
    """An interval of ratios as differences: -1.2..+3.4 %."""
    return f"{_percent_more(low)}..{change(high)}"


def _percent_more(ratio: float) -> str:
    """+3.4 of 1.034; of what is no change +0.0, and never -0.0."""
    percent = (ratio - 1) * 100 if is_change(ratio) else 0.0
    return f"{percent:+,.1f}" if abs(percent) < 99.95 else f"{percent:+,.0f}"


def percent(share: float) -> str:
    """0.034 is 3.4 %."""
    return f"{100 * share:,.0f} %" if share >= 0.0995 else f"{100 * share:.2g} %"


def gigabytes_per_s(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3g}"


def error(value: float | None) -> str:
    return BLANK if value is None else f"{value:.1e}"


def seconds(value: float) -> str:
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def minute(utc: str) -> str:
    """2026-11-23 12:00 of a time as results keep it."""
    return utc[: len("2026-11-23T12:00")].replace("T", " ")


def roughly(value_s: float) -> str:
    """A time of which no more than two digits are known: 45 s, 12 min, 3.5 h, 2 d."""
    for size_s, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if value_s >= 1.5 * size_s:
            count = value_s / size_s
            return f"{count:.2g} {unit}" if count < 10 else f"{count:,.0f} {unit}"
    return f"{max(1.0, value_s):.0f} s"
