"""The auditor's REST service and its console."""
