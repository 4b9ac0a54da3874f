"""The auditor: applies reports and counts to its database and judges each window of a topic.

The table in `rules` judges a window from its `facts`. The verdict on an hour is that of its worst window.
"""
