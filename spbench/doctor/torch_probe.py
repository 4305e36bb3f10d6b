"""Loads torch in a process of its own, to see whether that works."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence

from pydantic import ValidationError

from spbench.doctor.torch_facts import TorchFacts
from spbench.workload.case import Device

PROBE = (sys.executable, "-m", "spbench.doctor.torch_report")


def probe(device: Device, timeout_s: float, words: Sequence[str] = PROBE) -> TorchFacts | str:
    """What torch says of itself, and with cuda of the GPUs; or why it cannot be asked."""
    try:
        done = subprocess.run(
            [*words, device],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it does not answer in {timeout_s:g} s"
    if done.returncode < 0:
        known = {one.value: one.name for one in signal.Signals}
        return f"it was ended by {known.get(-done.returncode, f'signal {-done.returncode}')}"
    if done.returncode:
        return _last_line(done.stderr) or f"it ended with exit code {done.returncode}"
    try:
        return TorchFacts.model_validate_json(_last_line(done.stdout))
    except ValidationError:
        return f"it said {_last_line(done.stdout)!r} in place of facts"


def _last_line(text: str) -> str:
    """Of a traceback the error; above the facts a library may have printed anything."""
    lines = text.strip().splitlines()
    return lines[-1].strip()[:300] if lines else ""
