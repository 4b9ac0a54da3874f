"""What the verbs are given, and the jobs that spark-submit runs: that in as JSON, one JSON line out."""
