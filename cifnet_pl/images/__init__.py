"""An image in a file: its bytes, hash, time and pixels, read once, without labels or tasks."""
