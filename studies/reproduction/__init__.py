"""Parts of studies/reproduce.py: the papers' tables, the runs of their rows, and the reports."""
