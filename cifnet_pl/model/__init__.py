"""A learned model in plain torch: classify, extend, forget, merge, store, load and export it."""
