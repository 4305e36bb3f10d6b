"""Records become tables, plots and diagrams. matplotlib is loaded only here."""
