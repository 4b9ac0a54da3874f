"""What the schema registry and the auditor share as web services: uvicorn's start and stop, and SQLite."""
