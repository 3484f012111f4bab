"""Parts of studies/study_hybrids.py: the tasks, the model and the runs."""
