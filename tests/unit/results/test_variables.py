"""Variables in rows: each rank's, whatever they hold, and those that times may depend on."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from helpers.example_rows import row

from spbench.results.runs_csv import read_runs, records_of
from spbench.results.store import Store
from spbench.results.variables import column_of, compared, of_a_rank, read_column, shown, variables


def test_only_variables_that_matter_are_kept() -> None:
    """Variables of torch, CUDA, NCCL, threads and spbench, sorted; nothing else of the shell."""
    found = variables(
        {"NCCL_DEBUG": "INFO", "HOME": "somewhere", "CUDA_VISIBLE_DEVICES": "0", "MY_NCCL_X": "1"}
        | {"SPBENCH_RUN_GPUS": "2", "OMP_NUM_THREADS": "1", "NCCL": "x", "PYTORCH_ALLOC_CONF": "y"}
    )
    assert list(found) == [
        "CUDA_VISIBLE_DEVICES",
        "NCCL_DEBUG",
        "OMP_NUM_THREADS",
        "PYTORCH_ALLOC_CONF",
        "SPBENCH_RUN_GPUS",
    ]
    assert list(of_a_rank(found)) == [name for name in found if not name.startswith("SPBENCH")]


@pytest.mark.parametrize(
    "name",
    [
        *("SPBENCH_API_KEY", "TORCH_HUB_TOKEN", "SLURM_SECRET", "NCCL_passphrase", "CUDA_PASSWORD"),
        *("SLURM_JWT", "SLURM_WHATEVER", "SPBENCH_WHATEVER", "SPBENCH_RUN_AUTHORIZATION"),
        *("NCCL_AUTH_FILE", "TORCH_CREDENTIALS_PATH"),
    ],
)
@pytest.mark.parametrize("value", ["hunter2", "1234"])
def test_secrets_are_hidden(name: str, value: str) -> None:
    """The name is kept, the value is not, be it a number; a list says which values are."""
    assert variables({name: value}) == {name: "(hidden)"}
    assert shown(name, value) == "(hidden)"


def test_an_unlisted_variable_of_a_library() -> None:
    """A number or a yes or no is no secret; of a text a hash tells two runs apart."""
    assert variables({"NCCL_NEW_BUFFER": "4096", "TORCH_NEW": "true"}) == {
        "NCCL_NEW_BUFFER": "4096",
        "TORCH_NEW": "true",
    }
    fast, slow = (shown("NCCL_NEW_MODE", value) for value in ("fast", "slow"))
    assert re.fullmatch(r"\(hidden, hash [0-9a-f]{4}\)", fast)
    assert fast != slow


def test_a_url_keeps_its_host_alone() -> None:
    """Neither user nor password of a URL is kept; other texts stay as they are."""
    for secret in ("hunter2", "user:hunter2", "user:p@ss"):
        assert shown("SPBENCH_RUN_OUT", f"s3://{secret}@host/x") == "s3://(hidden)@host/x"
    assert shown("NCCL_DEBUG_FILE", "/tmp/me@host.%p") == "/tmp/me@host.%p"


def test_no_password_in_run_json(tmp_path: Path) -> None:
    """Command lines and sources may hold URLs, too."""
    with Store(tmp_path) as store:
        store.write_run({"argv": ["spbench", "run", "-w", "https://me:hunter2@host/a.yaml"]})
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["argv"][-1] == "https://(hidden)@host/a.yaml"


def test_values_of_all_ranks_are_in_one_column() -> None:
    """A value that ranks share stands there once; others carry their rank, and read back."""
    ranks = {0: {"NCCL_X": "a b", "OMP_Y": "1"}, 1: {"NCCL_X": "a b", "OMP_Y": ""}, 2: {}}
    text = column_of({rank: {"NCCL_ALGO": "Ring"} | of_rank for rank, of_rank in ranks.items()})
    assert read_column(text) == {
        "NCCL_ALGO": "Ring",
        "NCCL_X@rank0": "a b",
        "NCCL_X@rank1": "a b",
        "OMP_Y@rank0": "1",
        "OMP_Y@rank1": "",
    }
    assert (column_of({0: {}}), column_of({}), read_column("none")) == ("none", "", {})
    assert read_column("NCCL_X='never closed") == {}


def test_any_bytes_are_a_value() -> None:
    """What is no UTF-8, or has line ends, neither stops a rank nor breaks a row."""
    found = of_a_rank({"NCCL_ALGO": os.fsdecode(b"a\xff\nb\r\n")})
    assert found == {"NCCL_ALGO": "a\N{REPLACEMENT CHARACTER} b"}
    found["NCCL_ALGO"].encode()


def test_what_times_may_depend_on() -> None:
    """Names of devices and files do not matter; what the strategy asks for is part of it."""
    column = column_of(
        {
            rank: {"CUDA_VISIBLE_DEVICES": str(rank), "NCCL_ALGO": "Ring", "CUDA_X": "1"}
            for rank in range(2)
        }
    )
    assert "CUDA_VISIBLE_DEVICES@rank1=1" in column
    assert read_column(compared(column, "")) == {"NCCL_ALGO": "Ring", "CUDA_X": "1"}
    assert read_column(compared(column, "CUDA_X=1")) == {"NCCL_ALGO": "Ring", "CUDA_X": "*"}
    assert (compared("", "CUDA_X=1"), compared("OMP_NUM_THREADS=1", "")) == ("", "none")


@pytest.mark.parametrize("text", ["", "none", "'NCCL_X=a, \"b\"' OMP_Y=1"])
def test_a_file_of_rows_gives_it_back(tmp_path: Path, text: str) -> None:
    """Neither quotes nor the word for no variables are lost in runs.csv."""
    with Store(tmp_path) as store:
        store.append(row(variables=text))
    assert [record.variables for record in records_of(read_runs(tmp_path))] == [text]
