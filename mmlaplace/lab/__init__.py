"""Studies of attentions: their tasks, data sets, runs and reports.

Only :mod:`mmlaplace.lab.lra` is imported by ``import mmlaplace``, which registers its data sets and
modules. Nothing else in the package imports this folder.
"""
