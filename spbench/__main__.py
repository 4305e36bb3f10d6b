"""``spbench``, and ``python -m spbench`` as torchrun starts it."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    # Python looks in the current folder first, where a user's modules may have names of Python's.
    sys.path.append(sys.path.pop(0))

import atexit
import gc
import signal
from typing import NoReturn


def main() -> NoReturn:
    """Runs the command; until that is loaded and handles signals, Ctrl-C ends without a word."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    atexit.register(gc.freeze)  # or Python's end looks for garbage in all of torch: half a second
    from spbench.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
