"""Studies: several systems, several seeds, one budget, one table."""
