"""The jobs that spark-submit runs. Each takes a request as JSON and prints one line of JSON."""
