"""Links at another nominal rate: time on the wire changes, what the ends need does not."""

from __future__ import annotations

import pytest
from helpers.golden import Golden

from spbench.errors import Failure
from spbench.projection.costmodel.constants import Curve
from spbench.projection.costmodel.hardware import Cluster, find
from spbench.projection.costmodel.sensitivity import link_rate, relinked

CLUSTER = find("hgx-h100")
SIZES = (0.1, 1.0, 10.0, 100.0)
TIMED = (0.05, 0.02, 0.0125, 0.024)
"""GB/s at 0.2 Gbit/s, 0.025 GB/s: one through a bucket, two that the ends slow down, and one that
has all but headers and acknowledgements."""


def timed_at(rate: str) -> Cluster:
    """Its outermost links as timed at a nominal rate."""
    level = CLUSTER.levels[-1]
    curve = Curve(at=SIZES, values=TIMED, source="timed", kind="measured")
    rates = {
        op: each.model_copy(update={"gb_per_s": curve}) for op, each in level.collectives.items()
    }
    update = {"collectives": rates, "nominal_gb_per_s": link_rate(rate)}
    levels = (*CLUSTER.levels[:-1], level.model_copy(update=update))
    return CLUSTER.model_copy(update={"levels": levels})


@pytest.mark.parametrize("rate", ["50Mbit", "100Mbit", "200Mbit", "2 Gbit/s"])
def test_only_time_on_the_wire_changes(rate: str) -> None:
    made, wire_s = relinked(timed_at("200Mbit"), link_rate(rate)), 1 / link_rate(rate).value
    values = [made.levels[-1].collectives["p2p"].gb_per_s(size) for size in SIZES]
    full_s = 1 / (0.9 * 0.025)
    rests_s = [1 / timed - full_s for timed in TIMED[1:3]]
    saved_s = 1 / 0.025 - 1 / 0.05  # of 0.1 MB, for each; of 100 MB a thousandth of that
    held_s = max(saved_s, 0.018 / 0.1 * wire_s) if rate == "50Mbit" else saved_s  # two packets
    mores_s = [(held_s - saved_s) / larger for larger in (10, 100)]
    both = zip(rests_s, mores_s, strict=True)
    assert values[1:3] == pytest.approx([1 / (wire_s / 0.9 + rest - more) for rest, more in both])
    assert values[0] == pytest.approx(1 / (wire_s - held_s if rate != "2 Gbit/s" else wire_s))
    whole_s = 1 / 0.024 + saved_s / 1000
    assert values[3] == pytest.approx(1 / (whole_s * wire_s * 0.025 - held_s / 1000))
    network = made.levels[-1]
    assert network.nominal_gb_per_s == link_rate(rate)
    assert network.shared_gb_per_s is not None and CLUSTER.levels[-1].shared_gb_per_s is not None
    shared = CLUSTER.levels[-1].shared_gb_per_s.value
    assert network.shared_gb_per_s.value == pytest.approx(shared / wire_s / 0.025)
    assert made.levels[:-1] == CLUSTER.levels[:-1]


def test_what_a_bucket_holds_goes_as_fast_as_any_operation() -> None:
    """Small all-gathers were timed at 0.6 GB/s, shifts at none above 0.05: the same sockets carry
    a shift of 0.1 MB, once the bucket of a faster link lets it through at once."""
    timed = timed_at("200Mbit")
    level = timed.levels[-1]
    gather = level.collectives["all_gather"]
    fast = gather.gb_per_s.model_copy(update={"values": (0.6, *TIMED[1:])})
    both = {**level.collectives, "all_gather": gather.model_copy(update={"gb_per_s": fast})}
    level = level.model_copy(update={"collectives": both})
    made = relinked(timed.model_copy(update={"levels": (level,)}), link_rate("2Gbit"))
    rates = [made.levels[0].collectives[op].gb_per_s(0.1) for op in ("p2p", "all_gather")]
    assert rates == pytest.approx([0.6, 0.6])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("50Mbit", "50Mbit"),
        ("0.05 Gbit/s", "50Mbit"),
        ("200 mbit", "200Mbit"),
        ("2.5Gbit", "2.5Gbit"),
        ("9600bit", "9.6kbit"),
        ("0.5bit", "0.5bit"),
    ],
)
def test_the_name_tells_the_rate(text: str, name: str) -> None:
    """Rows and titles of two rates differ, and those of one rate are alike."""
    assert relinked(timed_at("200Mbit"), link_rate(text)).name == f"{CLUSTER.name} at {name}"


def test_what_is_not_a_rate_or_has_none_is_refused(golden: Golden) -> None:
    for text in ("200", "0Mbit", "fast", "-1Gbit"):
        with pytest.raises(Failure, match="write 200Mbit"):
            link_rate(text)
    with pytest.raises(Failure) as refused:
        relinked(CLUSTER, link_rate("400Gbit"))
    golden(refused.value)
