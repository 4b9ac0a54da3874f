"""The commands `demo`, `up` and `publish-access-log`."""
