"""A run for other tools: its tables as files, or its curves in another tracker."""
