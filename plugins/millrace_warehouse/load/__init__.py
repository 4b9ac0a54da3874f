"""One load: from the offsets of a topic to its files and the manifest that commits them."""
