"""The jobs that spark-submit runs: settings in as one JSON file, the result out as one JSON line."""
