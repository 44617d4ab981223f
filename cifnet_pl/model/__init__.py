"""A learned model in plain torch: classify, extend, forget, merge, evaluate, audit, store, load and
export it.
"""
