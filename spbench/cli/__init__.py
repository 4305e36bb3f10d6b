"""One thin file a command: flags, one call, an exit code."""
