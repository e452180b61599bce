"""Being here makes this folder importable from the tests below it: float64."""
