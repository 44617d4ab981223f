"""The calibration buffer: a compact, order-independent sample of past embeddings."""

from cifnet_pl.buffer.calibration_buffer import GOLDEN as GOLDEN
from cifnet_pl.buffer.calibration_buffer import STRATEGIES as STRATEGIES
from cifnet_pl.buffer.calibration_buffer import BufferSamples as BufferSamples
from cifnet_pl.buffer.calibration_buffer import CalibrationBuffer as CalibrationBuffer
from cifnet_pl.buffer.calibration_buffer import Strategy as Strategy
from cifnet_pl.buffer.calibration_buffer import buffer_samples as buffer_samples
from cifnet_pl.buffer.calibration_buffer import concatenate as concatenate
from cifnet_pl.buffer.calibration_buffer import given_groups as given_groups
from cifnet_pl.buffer.calibration_buffer import mix_keys as mix_keys
from cifnet_pl.buffer.calibration_buffer import select_centroid as select_centroid
from cifnet_pl.buffer.calibration_buffer import select_herding as select_herding
from cifnet_pl.buffer.calibration_buffer import select_kmeans as select_kmeans
from cifnet_pl.buffer.calibration_buffer import select_random as select_random
from cifnet_pl.buffer.calibration_buffer import split_mix as split_mix
