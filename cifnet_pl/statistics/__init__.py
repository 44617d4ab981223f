"""The sums that everything is learned from, and the ridge solves on them: pure linear algebra, no tasks or labels."""

from cifnet_pl.statistics.centred import Centred
from cifnet_pl.statistics.gcv import GCV_GRID, gcv_ridge, solve_gcv
from cifnet_pl.statistics.solve import factorise, left_out, leverages, solve_ridge
from cifnet_pl.statistics.sums import ClassSums, Sums, augment

__all__ = [
    "GCV_GRID",
    "Centred",
    "ClassSums",
    "Sums",
    "augment",
    "factorise",
    "gcv_ridge",
    "left_out",
    "leverages",
    "solve_gcv",
    "solve_ridge",
]
