"""The auditor: reads every report, keeps a ledger of them and judges each window of a topic.

A window is judged in `verdict`, from what `evidence` and `topic_view` know. An hour is its worst window, see
`answers`.
"""
