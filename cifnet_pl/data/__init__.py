"""Data: where images come from, in which order their classes are learned, and how they become
batches of tensors.
"""
