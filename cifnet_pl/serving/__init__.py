"""A learned model behind HTTP: a page, an API, and a workspace in which every change is a
version.
"""

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names and addresses under which this machine reaches itself."""
