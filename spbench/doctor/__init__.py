"""Whether a machine is fit: what spbench doctor looks at without ranks. No torch."""
