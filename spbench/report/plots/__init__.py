"""The figures of a run. matplotlib is loaded only here."""
