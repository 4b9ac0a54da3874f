"""What the schema registry and the auditor share as web services: start and stop, and a database."""
