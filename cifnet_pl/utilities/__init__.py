"""Helpers that know nothing of the method: errors, text, files and locks, run folders, growing
modules.
"""
