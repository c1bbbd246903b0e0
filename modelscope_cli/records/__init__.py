"""What every command returns: frozen, plain numbers and strings, no tensors and no modules.

The keys of `to_dict` are the JSON contract. Inside one schema version keys are added, never renamed.
Units stand in the names: `_bytes`, `_ms`, `_fraction` (0..1). Counts are integers.
"""

from modelscope_cli.records.ablate import AblateRecord, Ablation, Baseline
from modelscope_cli.records.attack import Answer, AttackRecord, ClassShift
from modelscope_cli.records.check import CheckRecord, Finding, RuleInfo, RuleList
from modelscope_cli.records.diff import (
    Difference,
    DiffRecord,
    DiffSide,
    LayerDifference,
    Renaming,
    TensorDifference,
)
from modelscope_cli.records.evidence import (
    Backward,
    BatchNormState,
    CallFlow,
    Evidence,
    Forward,
    Structure,
    TensorHealth,
    TrainMode,
)
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
from modelscope_cli.records.lrfind import LrfindRecord, Restored, Suggestion
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
from modelscope_cli.records.train import (
    ActivationCurves,
    Curve,
    DataInfo,
    Happening,
    LayerCurves,
    Measurement,
    Onset,
    ParameterCurves,
    Training,
    TrainRecord,
    WeightCurves,
)
from modelscope_cli.records.weights import DtypeTotal, Identified, TensorRow, WeightsRecord, WeightTotals

__all__ = [
    "AblateRecord",
    "Ablation",
    "ActivationCurves",
    "ActivationGradient",
    "ActivationStats",
    "Answer",
    "AttackRecord",
    "Backward",
    "Baseline",
    "BatchNormDrift",
    "BatchNormState",
    "CallFlow",
    "Catalogue",
    "CheckRecord",
    "ClassShift",
    "ClipInfo",
    "Counts",
    "Curve",
    "DataInfo",
    "DiffRecord",
    "DiffSide",
    "Difference",
    "Drift",
    "DtypeTotal",
    "Evidence",
    "FeatureMap",
    "FeatureMapsRecord",
    "Finding",
    "Forward",
    "GradThresholds",
    "GradTotals",
    "GradsRecord",
    "Guess",
    "Happening",
    "HookReport",
    "Identified",
    "InputInfo",
    "LayerCurves",
    "LayerDifference",
    "LayerShape",
    "LossInfo",
    "LrfindRecord",
    "Measurement",
    "ModelEntry",
    "ModelInfo",
    "Notice",
    "Onset",
    "ParameterCurves",
    "ParameterGradient",
    "PredictRecord",
    "Prediction",
    "PruneRecord",
    "PruneTotals",
    "PrunedLayer",
    "Record",
    "Redundancy",
    "Renaming",
    "Restored",
    "RuleInfo",
    "RuleList",
    "Run",
    "Saving",
    "Shape",
    "StatsRecord",
    "Structure",
    "Suggestion",
    "SummaryRecord",
    "SummaryTotals",
    "TensorDifference",
    "TensorHealth",
    "TensorRow",
    "TrainMode",
    "TrainRecord",
    "Training",
    "WeightCurves",
    "WeightTotals",
    "WeightsInfo",
    "WeightsRecord",
    "to_plain",
    "versions",
]
