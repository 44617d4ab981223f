"""Data: sources of images, the order of their classes, and batches of tensors."""
