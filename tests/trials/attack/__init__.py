"""Crafted and random requests for every API against a real broker, counted in its CPU time and its memory."""
