"""Sums that everything is learned from, and solves on them: linear algebra without tasks."""

from cifnet_pl.statistics.distances import ClassDistances as ClassDistances
from cifnet_pl.statistics.groups import Clusters as Clusters
from cifnet_pl.statistics.groups import Evidence as Evidence
from cifnet_pl.statistics.groups import group_evidence as group_evidence
from cifnet_pl.statistics.groups import near_duplicates as near_duplicates
from cifnet_pl.statistics.leaving_out import LearnedRows as LearnedRows
from cifnet_pl.statistics.leaving_out import LeftOut as LeftOut
from cifnet_pl.statistics.leaving_out import ScatteredRows as ScatteredRows
from cifnet_pl.statistics.projections import check_projection as check_projection
from cifnet_pl.statistics.projections import draw_normal as draw_normal
from cifnet_pl.statistics.projections import draw_phases as draw_phases
from cifnet_pl.statistics.projections import (
    draw_product_directions as draw_product_directions,
)
from cifnet_pl.statistics.projections import draw_projection as draw_projection
from cifnet_pl.statistics.projections import (
    projection_fingerprint as projection_fingerprint,
)
from cifnet_pl.statistics.projections import (
    with_product_features as with_product_features,
)
from cifnet_pl.statistics.ridge import Ridge as Ridge
from cifnet_pl.statistics.ridge import check_ridge as check_ridge
from cifnet_pl.statistics.ridge import factorise as factorise
from cifnet_pl.statistics.ridge import gcv_ridge as gcv_ridge
from cifnet_pl.statistics.ridge import (
    gcv_ridge_of_free_bias as gcv_ridge_of_free_bias,
)
from cifnet_pl.statistics.ridge import solve_ridge as solve_ridge
from cifnet_pl.statistics.ridge import whiten as whiten
from cifnet_pl.statistics.ridge_system import RidgeFactor as RidgeFactor
from cifnet_pl.statistics.ridge_system import RidgeSystem as RidgeSystem
from cifnet_pl.statistics.sums import Sums as Sums
from cifnet_pl.statistics.sums import augment as augment
from cifnet_pl.statistics.targets import OddsAndShares as OddsAndShares
from cifnet_pl.statistics.targets import Slopes as Slopes
from cifnet_pl.statistics.targets import Weighting as Weighting
from cifnet_pl.statistics.targets import squared_slopes as squared_slopes
from cifnet_pl.statistics.targets import target_limit as target_limit
from cifnet_pl.statistics.targets import to_probabilities as to_probabilities
