"""What every command returns: frozen, plain numbers and strings, no tensors and no modules.

The keys of `to_dict` are the JSON contract. Inside one schema version keys are added, never renamed.
Units stand in the names: `_bytes`, `_ms`, `_fraction` (0..1). Counts are integers.
"""

from modelscope_cli.records.ablate import AblateRecord, Ablation, Baseline
from modelscope_cli.records.attack import Answer, AttackRecord, ClassShift
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
from modelscope_cli.records.models import Catalogue, ModelEntry
from modelscope_cli.records.predict import Guess, Prediction, PredictRecord
from modelscope_cli.records.prune import Drift, PrunedLayer, PruneRecord, PruneTotals
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
from modelscope_cli.records.watch import (
    Event,
    LayerSeries,
    Magnitudes,
    ParameterSeries,
    ScalarSeries,
    TrainingFinding,
    WatchedLayer,
    WatchedParameter,
    WatchRecord,
)

__all__ = [
    "AblateRecord",
    "Ablation",
    "ActivationGradient",
    "ActivationStats",
    "Answer",
    "AttackRecord",
    "Baseline",
    "BatchNormDrift",
    "Catalogue",
    "ClassShift",
    "ClipInfo",
    "Counts",
    "Drift",
    "Event",
    "FeatureMap",
    "FeatureMapsRecord",
    "GradThresholds",
    "GradTotals",
    "GradsRecord",
    "Guess",
    "InputInfo",
    "LayerSeries",
    "LayerShape",
    "LossInfo",
    "Magnitudes",
    "ModelEntry",
    "ModelInfo",
    "Notice",
    "ParameterGradient",
    "ParameterSeries",
    "PredictRecord",
    "Prediction",
    "PruneRecord",
    "PruneTotals",
    "PrunedLayer",
    "Record",
    "Redundancy",
    "Run",
    "Saving",
    "ScalarSeries",
    "Shape",
    "StatsRecord",
    "SummaryRecord",
    "SummaryTotals",
    "TrainingFinding",
    "WatchRecord",
    "WatchedLayer",
    "WatchedParameter",
    "WeightsInfo",
    "to_plain",
    "versions",
]
