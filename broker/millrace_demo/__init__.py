"""A whole deployment on one machine, and the demonstration that proves the whole path on it."""
