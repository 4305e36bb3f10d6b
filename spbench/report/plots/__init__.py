"""The figures of a run, drawn with matplotlib."""
