"""capacity.csv: lines are kept, replaced by later ones of their case, and refused if damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.capacity_lines import capacity_line
from helpers.golden import Golden

from spbench.errors import CannotWriteError, ResultsError
from spbench.results.capacities import FILE, read_capacities, write_capacities


def test_a_later_line_of_a_case_replaces_the_earlier(tmp_path: Path) -> None:
    """Other ranks, budgets and kinds are other cases; what is not known stays blank."""
    folder = tmp_path / "new" / "folder"
    assert read_capacities(folder).empty
    write_capacities([capacity_line("dsp", 2, 10), capacity_line("dsp", 4, None)], folder)
    more = [
        capacity_line("dsp", 2, 11),
        capacity_line("dsp", 2, 5, budget_bytes=2**30),
        capacity_line("dsp", 2, 9, kind="measured", gpu="H100"),
    ]
    write_capacities(more, folder)
    frame = read_capacities(folder)
    assert frame["ranks"].tolist() == [4, 2, 2, 2]
    assert frame["largest"].isna().tolist() == [True, False, False, False]
    assert frame["largest"][1:].tolist() == [11, 5, 9]
    assert frame["gpu"].tolist() == ["", "", "", "H100"]
    assert [path.name for path in folder.iterdir()] == [FILE]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is damaged"),
        ("strategy,ranks\ndsp,2\n", "no column 'workload'"),
        ("a,b\n1,2,3,4", "no column"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ResultsError, match=said):
        read_capacities(tmp_path)


def test_a_file_in_place_of_the_folder_cannot_be_written_to(tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWriteError) as refused:
        write_capacities([capacity_line("dsp", 2, 10)], tmp_path / "file" / "inside")
    golden(refused.value)
