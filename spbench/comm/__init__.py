"""The only door to torch.distributed: differentiable, counted collectives."""
