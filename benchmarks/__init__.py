"""Ratios against named rivals, each pair measured side by side in one process. Run with ``make
bench``.
"""

from cifnet_pl.__main__ import tune_libraries

tune_libraries()  # as the command line does, before torch is imported
