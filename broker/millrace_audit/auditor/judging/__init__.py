"""Judging: the facts of windows as the database has them, verdicts on changed windows, incidents."""
