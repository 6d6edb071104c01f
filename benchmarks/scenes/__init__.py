"""The situations of a day of an operator, one file for each kind. benchmarks/situations.py runs them."""
