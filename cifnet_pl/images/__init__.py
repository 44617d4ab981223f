"""An image in a file: its bytes, hash, time and pixels, read once. Plain Python, no labels or
tasks.
"""
