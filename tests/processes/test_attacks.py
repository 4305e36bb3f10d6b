"""Another user of the machine, who reaches whatever a run listens at, can do nothing there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import attack_on_run
from helpers.network_namespace import ENTER, needs_namespace
from helpers.spbench_process import PATHS, ROOT, SMALL


@pytest.mark.long
@needs_namespace
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_run_on_one_machine_is_closed_to_others(tmp_path: Path) -> None:
    """It listens on loopback and in folders of its own alone; nowhere a store answers."""
    attack = [sys.executable, attack_on_run.__file__, str(tmp_path), *SMALL, "-s", "dsp", "-g", "2"]
    paths = os.pathsep.join([PATHS, str(ROOT / "tests")])
    done = subprocess.run(
        [*ENTER, *attack],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    works, ports, files, fallen, code, status = json.loads(done.stdout)
    assert works, "a store that does listen has withstood the attack, too"
    assert ports and files
    assert {address for address, _ in ports} <= {"127.0.0.1", "::1"}
    assert not [file for file in files if file.startswith("@")]
    assert (fallen, code, status) == ([], 0, ["ok"])
    assert not (tmp_path / "owned").exists()
