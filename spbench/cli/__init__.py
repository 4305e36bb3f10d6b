"""One file a family of commands: flags, one call, an exit code."""
