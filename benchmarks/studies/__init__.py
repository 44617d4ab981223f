"""Studies on images that chose a constant or support a table in docs/: ``python -m
benchmarks.studies.NAME``.
"""
