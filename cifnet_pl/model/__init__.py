"""A learned model in plain torch: classify, extend, forget, merge, evaluate, audit and store it."""
