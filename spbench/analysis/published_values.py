"""What the papers measured of a case: the same work and strategy on as many ranks.

Throughput is of DSP's figure; sizes are of the paper on Ring Self-Attention, which publishes most
of them as ratios to its baseline. The facts are the files of ``configs/published/papers/``.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import yaml

from spbench.results.capacities import BATCH, SizedWork
from spbench.results.record import Record
from spbench.workload.config_names import configs

DSP_PAPER, RSA_PAPER = "dsp.yaml", "rsa.yaml"
LENGTH = "sequence"


@final
@dataclass(frozen=True, kw_only=True)
class Published:
    """A published figure in our unit, and who published it of what hardware."""

    value: float
    source: str
    over: str = ""
    """Where a ratio was published: the strategy whose size here it is multiplied by."""
    over_ranks: int = 0


@lru_cache(maxsize=2)
def paper(name: str) -> Mapping[str, Any]:
    """The facts of the file of a paper."""
    text = (configs() / "published" / "papers" / name).read_text(encoding="utf-8")
    facts: dict[str, Any] = yaml.safe_load(text)
    return facts


def published_tokens_per_s(record: Record) -> Published | None:
    """Tokens a second of all ranks; None where no paper measured this case.

    Samples a second were read off a figure; model and batch are not stated there, and are taken
    to be the smaller model and one sample.
    """
    facts = paper(DSP_PAPER)
    figure = facts["figure"]
    is_like_it = record.workload == figure["workload"] and record.mode == "train"
    if not is_like_it or record.batch != 1:
        return None
    axes = axes_of(record.axes)
    for point in figure["points"]:
        of_point = {"time": point["frames"], "space": figure["space"]}
        is_same = axes == of_point and record.world_size == point["ranks"]
        if is_same and record.strategy in figure["strategies"]:
            value = point[record.strategy] * math.prod(axes.values())
            return Published(value=value, source=f"{facts['cite']}, on {figure['hardware']}")
    return None


def published_sizes(work: SizedWork) -> Mapping[tuple[str, int], Published]:
    """Largest batches or lengths by strategy and ranks, for memory like the paper's; a ratio is to
    the size of ``over`` on ``over_ranks`` ranks."""
    facts = paper(RSA_PAPER)
    memory_gb = facts["setup"]["memory_gb"]
    if not 0.85e9 * memory_gb <= work.budget_bytes <= 2**30 * memory_gb:
        return {}
    source = f"{facts['cite']}, on P100 of {memory_gb} GB"
    strategy, baseline = facts["setup"]["strategy"], facts["setup"]["over"]
    known: dict[tuple[str, int], Published] = {}
    for each in facts["ratios"]:
        fixed = each.get("batch", facts["setup"]["sequence"])
        if _is_same(work, each["workload"], each["grows"], fixed):
            over = {"over": baseline, "over_ranks": each["over"]}
            known[strategy, each["ranks"]] = Published(value=each["ratio"], source=source, **over)
    alone = facts["linformer"]
    if _is_same(work, alone["workload"], LENGTH, alone["batch"]):
        known[strategy, alone["ranks"]] = Published(value=alone["tokens"], source=source)
    return known


def _is_same(work: SizedWork, workload: str, grows: str, fixed: int) -> bool:
    """Whether the workload grows likewise, and what does not grow has the published size."""
    size = axes_of(work.axes).get(LENGTH) if grows == BATCH else work.batch
    return work.workload == workload and work.grows == grows and size == fixed


def axes_of(text: str) -> dict[str, int]:
    """The lengths in a column ``axes``."""
    return {axis: int(length) for axis, length in re.findall(r"([^=]+)=(\d+)(?:x|$)", text)}
