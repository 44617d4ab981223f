"""Settings of all tests: property tests draw the same cases in every run; more of them with HYPOTHESIS_PROFILE=soak."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is imported: several workers share the cores
    os.environ["OMP_NUM_THREADS"] = "1"

from hypothesis import settings

settings.register_profile("quick", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("soak", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
