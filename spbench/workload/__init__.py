"""What is computed: axes, sublayers, sizes, operations; YAML of workloads and sweeps. No torch."""
