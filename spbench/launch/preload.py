"""What the fork server imports once, so that each rank it forks starts with torch loaded.

Importing this also ties the server's life to the launcher's: the ranks it forked hold the
pipe that would otherwise tell it that the launcher is gone.
"""

from spbench.worker.parent_death import die_with_parent

die_with_parent()  # first: what follows takes seconds, in which the launcher may die

import torch.fx.experimental.symbolic_shapes  # noqa: E402, F401 - by the first backward pass

import spbench.worker.rank_process  # noqa: E402, F401
