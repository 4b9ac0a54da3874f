"""One short file per command family; `millrace.cli` imports each only when it is called."""
