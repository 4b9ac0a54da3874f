"""One load: from the offsets of a topic to a published folder of files."""
