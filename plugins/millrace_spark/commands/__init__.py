"""The commands of this plugin. Each checks its options, calls one function, and prints the result."""
