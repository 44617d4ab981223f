"""The sums that everything is learned from, and the ridge solves on them: pure linear algebra, no tasks or labels."""

from cifnet_pl.statistics.distances import ClassDistances, ClassMoments, Discriminant, within_scatter
from cifnet_pl.statistics.near_copies import (
    comparable,
    left_out_groups,
    near_groups,
    near_limit,
)
from cifnet_pl.statistics.occasions import Occasions, find_occasions
from cifnet_pl.statistics.ridge import (
    GCV_GRID,
    Centred,
    Choice,
    Position,
    Ridge,
    equal_groups,
    factorise,
    gcv_ridge,
    half_products,
    left_out_together,
    solve,
    solve_ridge,
)
from cifnet_pl.statistics.sums import Sums, augment

__all__ = [
    "GCV_GRID",
    "Centred",
    "Choice",
    "ClassDistances",
    "ClassMoments",
    "Discriminant",
    "Occasions",
    "Position",
    "Ridge",
    "Sums",
    "augment",
    "comparable",
    "equal_groups",
    "factorise",
    "find_occasions",
    "gcv_ridge",
    "half_products",
    "left_out_groups",
    "left_out_together",
    "near_groups",
    "near_limit",
    "solve",
    "solve_ridge",
    "within_scatter",
]
