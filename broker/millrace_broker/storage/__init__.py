"""Bytes and offsets on disk: segments, partition logs, the log directory."""
