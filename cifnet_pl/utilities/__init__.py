"""Helpers without knowledge of the method: errors, text, files, locks, run folders, plug-ins."""
