"""The auditor: reads every report, keeps a ledger of them and judges each window of a topic.

A window is judged by the table of `rules`, from its `facts`. An hour is its worst window, see `answers`.
"""
