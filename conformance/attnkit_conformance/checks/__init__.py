"""The checks, one module for each group of rules of the contract."""
