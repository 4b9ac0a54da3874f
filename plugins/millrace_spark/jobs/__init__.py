"""The jobs that spark-submit runs: settings in as one JSON argument, the result out as one JSON line."""
