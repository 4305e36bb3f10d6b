"""The page: the text of page.txt with its tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dsp_figure import FigurePoint, constant_ms, figure_table, holds, rates_table
from dsp_scaling import OWN, Scaling, gains_table, gpu_hours, kept_rates, scaling_table
from markdown import brief, table
from paper_facts import facts
from published_work import ENGINE
from rsa_capacity import Question, linformer_table, ratios_table, table_4_gpu_hours, today_table
from volumes import dsp_table, rsa_table

TEXT = Path(__file__).with_name("page.txt")
STEPS = 4
"""Steps of a case of DSP's paper at most: two to warm up, two timed."""
SPENT_ON = (OWN, "ulysses", "megatron-sp", "ring")


def page(points: Sequence[FigurePoint], scaling: Scaling, answers: dict[Question, int]) -> str:
    """The whole page."""
    dsp, rsa = facts("dsp"), facts("rsa")
    constants = {ranks: constant_ms(points, ranks) for ranks in sorted({x.ranks for x in points})}
    without = [x for x in points if holds(x.by_engines, x.step_ms - constants[x.ranks])]
    over = [each.step_ms / 1e3 / each.projected.step_s for each in points]
    return TEXT.read_text(encoding="utf-8").format(
        dsp_paper=dsp["paper"],
        dsp_volumes=dsp_table(),
        figure_workload=dsp["figure"]["workload"],
        figure=figure_table(points),
        inside=sum(holds(each.projected, each.step_ms) for each in points),
        points=len(points),
        over=f"{min(over):.2f} to {max(over):.2f}",
        engine=f"{ENGINE.value:g}",
        engine_spread=f"{ENGINE.spread:g}",
        inside_engines=sum(holds(each.by_engines, each.step_ms) for each in points),
        fixed=" and ".join(f"{ms:.0f} ms on {ranks} GPUs" for ranks, ms in constants.items()),
        inside_without=len(without),
        rates=rates_table(points),
        known_rates=_range([each.rates[0] for each in points]),
        every_rates=_range([each.rates[1] for each in points]),
        too_short=sum(each.left_s[0] < each.compute_s for each in points),
        clusters=" and ".join(f"`{name}`" for name in dsp["clusters"]),
        weak=scaling_table(scaling, ("weak-intra", "weak-inter")),
        kept=kept_rates(scaling, ("weak-intra", "weak-inter")),
        strong=scaling_table(scaling, ("strong-intra", "strong-inter")),
        end_to_end=scaling_table(scaling, ("end-to-end",)),
        gains=gains_table(scaling),
        claims="; ".join(f"{each['version']}: {each['gain']}" for each in dsp["claims"]),
        rsa_paper=rsa["paper"],
        rsa_volumes=rsa_table(),
        ratios=ratios_table(answers),
        today=today_table(answers),
        upper_batch=rsa["linformer"]["batch"],
        linformer=linformer_table(answers),
        spent=_spent(scaling),
    )


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f}"


def _spent(scaling: Scaling) -> str:
    hours = (gpu_hours(scaling, SPENT_ON, STEPS), table_4_gpu_hours())
    papers = zip(("dsp", "rsa"), hours, strict=True)
    rows = [[name.upper(), facts(name)["setup"]["gpus"], brief(each)] for name, each in papers]
    return table(("paper", "hardware", "GPU hours of the steps alone"), rows)
