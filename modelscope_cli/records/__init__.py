"""What every command returns: frozen, plain numbers and strings, no tensors and no modules.

The keys of `to_dict` are the JSON contract. Inside one schema version keys are added, never renamed.
Units stand in the names: `_bytes`, `_ms`, `_fraction` (0..1). Counts are integers.
"""

from modelscope_cli.records.featuremaps import FeatureMap, FeatureMapsRecord
from modelscope_cli.records.grads import (
    ActivationGradient,
    ClipInfo,
    GradsRecord,
    GradThresholds,
    GradTotals,
    LossInfo,
    ParameterGradient,
    Saving,
)
from modelscope_cli.records.hooks import HookReport
from modelscope_cli.records.models import Catalogue, ModelEntry
from modelscope_cli.records.predict import Guess, Prediction, PredictRecord
from modelscope_cli.records.run import (
    InputInfo,
    ModelInfo,
    Notice,
    Record,
    Run,
    Shape,
    WeightsInfo,
    to_plain,
    versions,
)
from modelscope_cli.records.stats import ActivationStats, BatchNormDrift, Counts, Redundancy, StatsRecord
from modelscope_cli.records.summary import LayerShape, SummaryRecord, SummaryTotals

__all__ = [
    "ActivationGradient",
    "ActivationStats",
    "BatchNormDrift",
    "Catalogue",
    "ClipInfo",
    "Counts",
    "FeatureMap",
    "FeatureMapsRecord",
    "GradThresholds",
    "GradTotals",
    "GradsRecord",
    "Guess",
    "HookReport",
    "InputInfo",
    "LayerShape",
    "LossInfo",
    "ModelEntry",
    "ModelInfo",
    "Notice",
    "ParameterGradient",
    "PredictRecord",
    "Prediction",
    "Record",
    "Redundancy",
    "Run",
    "Saving",
    "Shape",
    "StatsRecord",
    "SummaryRecord",
    "SummaryTotals",
    "WeightsInfo",
    "to_plain",
    "versions",
]
