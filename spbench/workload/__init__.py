"""What is computed: axes, sublayers, sizes, operations; YAML loading. No torch."""
