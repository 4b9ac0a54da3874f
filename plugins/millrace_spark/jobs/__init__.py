"""The jobs that spark-submit runs: each takes a verb's options as JSON and prints one line of JSON."""
