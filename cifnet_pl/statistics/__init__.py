"""The sums that everything is learned from, and the ridge solves on them: pure linear algebra, no
tasks or labels.
"""

from cifnet_pl.statistics.distances import ClassDistances as ClassDistances
from cifnet_pl.statistics.distances import ClassMoments as ClassMoments
from cifnet_pl.statistics.distances import Discriminant as Discriminant
from cifnet_pl.statistics.distances import within_scatter as within_scatter
from cifnet_pl.statistics.groups import FoundGroups as FoundGroups
from cifnet_pl.statistics.groups import comparable as comparable
from cifnet_pl.statistics.groups import find_groups as find_groups
from cifnet_pl.statistics.groups import left_out_groups as left_out_groups
from cifnet_pl.statistics.groups import near_groups as near_groups
from cifnet_pl.statistics.groups import near_limit as near_limit
from cifnet_pl.statistics.ridge import GCV_GRID as GCV_GRID
from cifnet_pl.statistics.ridge import Centred as Centred
from cifnet_pl.statistics.ridge import Choice as Choice
from cifnet_pl.statistics.ridge import Position as Position
from cifnet_pl.statistics.ridge import Ridge as Ridge
from cifnet_pl.statistics.ridge import equal_groups as equal_groups
from cifnet_pl.statistics.ridge import factorise as factorise
from cifnet_pl.statistics.ridge import gcv_ridge as gcv_ridge
from cifnet_pl.statistics.ridge import half_products as half_products
from cifnet_pl.statistics.ridge import left_out_together as left_out_together
from cifnet_pl.statistics.ridge import solve as solve
from cifnet_pl.statistics.ridge import solve_ridge as solve_ridge
from cifnet_pl.statistics.sums import Sums as Sums
from cifnet_pl.statistics.sums import augment as augment
