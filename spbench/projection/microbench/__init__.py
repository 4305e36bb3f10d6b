"""Times of this machine, or logs of nccl-tests, as the constants of a cluster."""
