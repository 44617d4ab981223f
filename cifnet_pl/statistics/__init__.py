"""The sums that everything is learned from, and the ridge solves on them: pure linear algebra, no tasks or labels."""

from cifnet_pl.statistics.centred import Centred
from cifnet_pl.statistics.class_distances import ClassDistances, ClassMoments
from cifnet_pl.statistics.discriminant import Discriminant, within_scatter
from cifnet_pl.statistics.gcv import GCV_GRID, Choice, Place, gcv_ridge, solve_gcv
from cifnet_pl.statistics.leave_one_out import half_products, left_out_together, shared_groups
from cifnet_pl.statistics.near_copies import comparable, joined, left_out_groups, near_groups, near_limit, resembles
from cifnet_pl.statistics.solve import factorise, solve_ridge
from cifnet_pl.statistics.sums import ClassSums, Sums, augment

__all__ = [
    "GCV_GRID",
    "Centred",
    "Choice",
    "ClassDistances",
    "ClassMoments",
    "ClassSums",
    "Discriminant",
    "Place",
    "Sums",
    "augment",
    "comparable",
    "factorise",
    "gcv_ridge",
    "half_products",
    "joined",
    "left_out_groups",
    "left_out_together",
    "near_groups",
    "near_limit",
    "resembles",
    "shared_groups",
    "solve_gcv",
    "solve_ridge",
    "within_scatter",
]
