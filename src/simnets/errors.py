"""The one root of every error that `simnets` raises on bad input."""


class SimNetsError(ValueError):
    """Bad input: the message names what was wrong, what was expected and what to do."""
