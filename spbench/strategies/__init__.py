"""The strategies, one file each, to be read side by side. None imports another."""
