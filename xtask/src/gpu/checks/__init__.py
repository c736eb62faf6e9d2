"""The checks of run.py, one module a group."""
