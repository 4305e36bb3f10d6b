"""``python -m spbench``, as torchrun starts it."""

from spbench.cli.main import main

main()
