"""The time of what a rank does on a cluster, with its interval and its terms."""
