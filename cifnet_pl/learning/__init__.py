"""Lightning: modules that learn a stream of tasks, callbacks, checkpoints and the run record."""
