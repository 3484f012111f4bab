"""What tools/reproduce.py is made of: the papers' tables, runs of their rows, and reports."""
