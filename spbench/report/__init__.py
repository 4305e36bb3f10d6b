"""Records to tables and plots. matplotlib only here."""
