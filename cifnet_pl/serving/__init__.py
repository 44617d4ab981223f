"""A learned model behind HTTP: a page, an API, and a workspace in which every change is a
version.
"""
