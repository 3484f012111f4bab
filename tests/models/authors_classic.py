"""How the files of the authors' classic attentions become ours, see test_authors_attentions.py."""

AUTHORS = {}
