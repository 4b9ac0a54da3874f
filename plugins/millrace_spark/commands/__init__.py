"""The commands of this plugin. Each checks its options, hands over to one function, prints what that says."""
