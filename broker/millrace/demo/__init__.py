"""The whole path once, on real processes, and then the proof."""
