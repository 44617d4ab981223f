"""Settings of all tests: property tests draw the same cases in every run; more of them with HYPOTHESIS_PROFILE=soak."""

import os
import tempfile

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is imported: several workers share the cores
    os.environ["OMP_NUM_THREADS"] = "1"

if "CIFNET_CACHE" not in os.environ:  # a network is exported once, not in every test, and not into the user's folder
    os.environ["CIFNET_CACHE"] = os.path.join(tempfile.gettempdir(), f"cifnet_pl-tests-{os.getuid()}")

from hypothesis import settings

settings.register_profile("quick", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("soak", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
