"""What the gate and the witnesses say of a wrong step: the words that tell which of them spoke.

Their sentences are tested at their units; a planted fault is to be caught by the right one.
"""

from __future__ import annotations

DIFFERS = "differs from one device"
"""Outputs or gradients are not those of the reference."""
DRIFTS = "differs from the first step"
"""A timed step does not compute what the gated one did."""
IN_TIMED_STEPS = f"in timed steps {DRIFTS}"
OF_FLIPPED = f"output from flipped inputs {DIFFERS}"
BYTES_OF_TIMED = "bytes in 1 timed step, not "
BYTES_OF_SILENT = "bytes in 1 silent step, not "
SILENT_WRITES = "a silent step writes"
NO_UPDATE = "AdamW took 0 updates of a weight in 1 {} step, not 1"
