"""The commands of a warehouse: their options, their output for people and scripts, and their execution."""
