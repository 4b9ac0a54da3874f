"""The auditor: reads every report, keeps a ledger of them and judges each window of a topic."""
