"""Cores and memory within the limits of control groups, of both versions."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from spbench.launch.ranks import NodeRanks
from spbench.results import machine
from spbench.results.machine import (
    Allowed,
    allowed,
    free_memory_bytes,
    threads_of_a_rank,
    usable_cores,
)

GIB = 2**30


def groups(folder: Path, text: str, **limits_: str) -> Allowed:
    """The limits in these groups; in a file's name '__' stands for '/', '_DOT_' for '.'."""
    (folder / "cgroup").write_text(text)
    for name, content in limits_.items():
        file = folder / "fs" / name.replace("__", "/").replace("_DOT_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
    return allowed(folder / "cgroup", folder / "fs")


def test_limits_of_control_groups_of_version_2(tmp_path: Path) -> None:
    """The tightest limit of a group and its parents counts; 'max' is no limit."""
    allowance = groups(
        tmp_path,
        "0::/a/b\n",
        a__b__memory_DOT_max="max",
        a__memory_DOT_max=str(4 * GIB),
        memory_DOT_max=str(8 * GIB),
        a__b__cpu_DOT_max="150000 100000",
        a__cpu_DOT_max="max 100000",
    )
    assert allowance == Allowed(memory_bytes=4 * GIB, cores=1.5)


def test_limits_of_control_groups_of_version_1(tmp_path: Path) -> None:
    """Each controller has its own tree; in a container the host's path does not exist."""
    allowance = groups(
        tmp_path,
        "3:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n0::/\n",
        memory__memory_DOT_limit_in_bytes=str(2 * GIB),
        cpu__cpu_DOT_cfs_quota_us="200000",
        cpu__cpu_DOT_cfs_period_us="100000",
    )
    assert allowance == Allowed(memory_bytes=2 * GIB, cores=2.0)


def test_no_limits_of_control_groups(tmp_path: Path) -> None:
    """A number near 2**63, a quota of -1, and missing files are no limits."""
    allowance = groups(
        tmp_path,
        "3:memory:/\n2:cpu:/\n",
        memory__memory_DOT_limit_in_bytes="9223372036854771712",
        cpu__cpu_DOT_cfs_quota_us="-1",
        cpu__cpu_DOT_cfs_period_us="100000",
    )
    assert allowance == Allowed()
    assert allowed(tmp_path / "nowhere", tmp_path) == Allowed()


def test_what_a_limit_of_version_2_leaves(tmp_path: Path) -> None:
    """What the group holds counts, without files that were read and can be dropped; the group
    above may be the fuller one."""
    here = groups(
        tmp_path,
        "0::/a/b\n",
        a__b__memory_DOT_max=str(4 * GIB),
        a__b__memory_DOT_current=str(3 * GIB),
        a__b__memory_DOT_stat=f"anon 7\ninactive_file {2 * GIB}\nactive_file 9",
        a__memory_DOT_max=str(8 * GIB),
        a__memory_DOT_current=str(7 * GIB),
    )
    assert here == Allowed(memory_bytes=4 * GIB, left_bytes=GIB)


def test_what_a_limit_of_version_1_leaves(tmp_path: Path) -> None:
    """Its files count all groups below; a group over its limit leaves nothing."""
    here = groups(
        tmp_path,
        "3:memory:/\n",
        memory__memory_DOT_limit_in_bytes=str(2 * GIB),
        memory__memory_DOT_usage_in_bytes=str(3 * GIB),
        memory__memory_DOT_stat=f"inactive_file 5\ntotal_inactive_file {2 * GIB}",
    )
    assert here == Allowed(memory_bytes=2 * GIB, left_bytes=GIB)
    (tmp_path / "fs" / "memory" / "memory.stat").unlink()
    assert allowed(tmp_path / "cgroup", tmp_path / "fs").left_bytes == 0


@pytest.mark.parametrize(
    ("group", "free"),
    [
        (Allowed(), 10),
        (Allowed(memory_bytes=20, left_bytes=12), 10),
        (Allowed(memory_bytes=8), 8),
        (Allowed(memory_bytes=8, left_bytes=3), 3),
        (Allowed(memory_bytes=8, left_bytes=0), 0),
    ],
)
def test_free_memory_is_the_lesser(
    monkeypatch: pytest.MonkeyPatch, group: Allowed, free: int
) -> None:
    """Of what the machine has available and what the group leaves."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10))
    monkeypatch.setattr(machine, "allowed", lambda: group)
    assert free_memory_bytes() == free


@pytest.mark.parametrize(
    ("cores", "quota", "ranks", "threads"),
    [
        (8, None, 2, 4),
        (8, 0.5, 1, 1),
        (8, 3.5, 1, 3),
        (8, 3.5, 2, 1),
        (2, 8.0, 1, 2),
        (2, None, 4, 1),
    ],
)
def test_threads_of_a_rank(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cores: int,
    quota: float | None,
    ranks: int,
    threads: int,
) -> None:
    """The lesser of the cores that it may run on and of a quota, shared by the ranks of a machine:
    half a core is one thread."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(machine, "allowed", lambda: Allowed(cores=quota))
    assert threads_of_a_rank(ranks) == threads
    assert usable_cores() == min(cores, quota or cores)
    variables = NodeRanks(0, [ranks], tmp_path).environment(0, "cpu")
    assert variables["OMP_NUM_THREADS"] == str(threads)
