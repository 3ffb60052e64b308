"""What gradwatch raises: each message says what was found, what was wanted and what to do."""


class GradwatchError(Exception):
    """Base of every error gradwatch raises; the command line prints it as one line and exits with code 2."""


class PolicyError(GradwatchError, ValueError):
    """A policy's text or its settings make no sense."""


class WatchError(GradwatchError, ValueError):
    """A Watch cannot be attached, or was used against its contract."""


class RunError(GradwatchError):
    """A run cannot be found, read or written."""


class GradwatchWarning(UserWarning):
    """Something was left out or degraded; training goes on."""
