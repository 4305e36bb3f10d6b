"""Heartbeats of ranks, and what the parent concludes from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.golden import Golden

from spbench.launch.local import HangDetector, least_far
from spbench.results.heartbeat import Heartbeat, RankPosition, heartbeat_path, read_heartbeat


def place(phase: str, steps: int = 0, transfers: int = 0) -> RankPosition:
    phases = ["starting", "joining", "gate", "warm-up", "leaving", "ended"].index(phase) + 1
    return RankPosition(
        pid=1, phase=phase, beats=1, phases=phases, steps=steps, transfers=transfers
    )


def test_a_heartbeat_is_read_as_it_was_written(tmp_path: Path, golden: Golden) -> None:
    """It holds the phase, steps and transfers of the step; a rank that has not begun has none."""
    assert read_heartbeat(tmp_path, 1) is None
    heartbeat = Heartbeat(heartbeat_path(tmp_path, 1))
    heartbeat.phase("gate")
    heartbeat.step()
    heartbeat.transfer()
    heartbeat.transfer()
    found = read_heartbeat(tmp_path, 1)
    assert found is not None
    assert (found.phase, found.steps, found.transfers) == ("gate", 1, 2)
    golden(str(found))
    heartbeat.step()
    assert str(read_heartbeat(tmp_path, 1)) == "step 1 (gate)"
    heartbeat_path(tmp_path, 1).write_bytes(b"torn")
    assert read_heartbeat(tmp_path, 1) is None


def test_silence_is_counted_from_the_last_change(tmp_path: Path) -> None:
    """Any rank's change counts; without a heartbeat time counts only after the time to start."""
    now = [0.0]
    watch = HangDetector(tmp_path, range(2), lambda: now[0])
    strict = HangDetector(tmp_path, range(2), lambda: now[0], from_start=True)
    now[0] = 70.0
    assert (watch.still_s(), strict.still_s()) == (0.0, 10.0)
    heartbeats = [Heartbeat(heartbeat_path(tmp_path, rank)) for rank in range(2)]
    now[0] = 71.0
    assert (watch.still_s(), strict.still_s()) == (0.0, 0.0)
    now[0] = 75.0
    assert watch.still_s() == 4.0
    heartbeats[1].step()
    now[0] = 76.0
    assert watch.still_s() == 0.0


@pytest.mark.parametrize(
    ("places", "behind", "said"),
    [
        (
            {0: place("warm-up", 4, 6), 1: place("warm-up", 4, 2)},
            [1],
            "rank 1 stopped in step 3 (warm-up), 2 transfers into it, the others in step 3 "
            "(warm-up), 6 transfers into it",
        ),
        ({0: place("gate", 1), 1: None}, [1], "rank 1 stopped in its start, the others in step 0"),
        ({0: place("ended"), 1: place("leaving", 9)}, [1], "rank 1 stopped in leaving"),
        (
            {rank: place("warm-up", 4, 3) for rank in range(3)},
            [0, 1, 2],
            "ranks 0, 1 and 2 stopped in step 3 (warm-up), 3 transfers into it: their collectives "
            "do not match",
        ),
        ({rank: place("gate", 1) for rank in range(16)}, list(range(16)), "16 ranks stopped in"),
        ({0: place("ended")}, [], "every rank had ended"),
    ],
)
def test_who_got_least_far(
    places: dict[int, RankPosition | None], behind: list[int], said: str
) -> None:
    """The sentence names the ranks behind, where they stood, and where the others did."""
    found, sentence = least_far(places)
    assert found == behind
    assert sentence.startswith(said)
