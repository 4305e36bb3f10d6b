"""One rank's life: gate, warm-up, clock, memory, counters."""
