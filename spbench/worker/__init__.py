"""The life of one rank: gate, memory, warm-up, timing, silent steps."""
