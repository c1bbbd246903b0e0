"""Names that honest writers of checkpoints use, and what each does with its arguments. Standard library.

Each is known by its full name, never by how it begins. What is not written down here is unknown.
"""

_DTYPES = """
    float64 float32 float16 bfloat16 bool complex32 complex64 complex128 bcomplex32 int64 int32 int16 int8
    uint8 uint16 uint32 uint64 int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7
    float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 qint8 quint8
    qint32 quint4x2 quint2x4 bits16 bits1x8 bits2x4 bits4x2 bits8"""
_QSCHEMES = """
    per_tensor_affine per_tensor_symmetric per_channel_affine per_channel_symmetric
    per_channel_affine_float_qparams"""
_KINDS = "BFloat16 Bool Byte Char ComplexDouble ComplexFloat Double Float Half Int Long Short"
_TENSOR_KINDS = "BFloat16 Byte Char Double Float Half Int Long Short"
_REBUILD = """
    tensor tensor_v2 tensor_v3 parameter parameter_with_state qtensor sparse_tensor meta_tensor_no_storage
    wrapper_subclass device_tensor_from_numpy device_tensor_from_cpu_tensor"""


def _names(module: str, names: str, end: str = "") -> set[str]:
    return {f"{module}{name}{end}" for name in names.split()}


# What a file may name under weights_only=True: torch/_weights_only_unpickler.py, `_get_allowed_globals`.
WEIGHTS_ONLY = frozenset(
    _names(
        "torch.", f"{_DTYPES} {_QSCHEMES} Size Tensor device nn.parameter.Parameter serialization._get_layout"
    )
    | _names(
        "torch.", f"{_KINDS} QInt32 QInt8 QUInt2x4 QUInt4x2 QUInt8 storage.Typed storage.Untyped", "Storage"
    )
    | _names("torch.cuda.", _KINDS, "Storage")
    | _names("torch.", f"{_TENSOR_KINDS} Bool", "Tensor")
    | _names("torch.cuda.", f"{_TENSOR_KINDS} Bool", "Tensor")
    | _names("torch.sparse.", _TENSOR_KINDS, "Tensor")
    | _names("torch.cuda.sparse.", _TENSOR_KINDS, "Tensor")
    | _names("torch._utils._rebuild_", _REBUILD)
    | {
        "collections.OrderedDict",
        "collections.Counter",
        "builtins.bytearray",
        "builtins.set",
        "builtins.complex",
    }
    | {"torch._tensor._rebuild_from_type_v2", "_codecs.encode"}
)

# torch, `sys` and the like refuse these even where a user allows them: `_blocklisted_modules` there.
BLOCKED = frozenset({"sys", "os", "posix", "nt"})

# What a known name does with its arguments where a pickle calls it; what is done by none of these has a rule of its
# own in `call_rules`.
KEEPS = "keeps them"
KEEPS_FIRST = "keeps the first of them and reads the others"
LISTS = "keeps what is in a list that it is given"
HASHES = "keeps what is in a list or dict that it is given, and hashes it"
READS = "converts, iterates, compares or formats them, or looks attributes up in them"
UNCALLED = "is only referred to, or made without its constructor"

_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_DONE: dict[str, dict[str, str]] = {
    KEEPS: {
        "argparse": "Namespace",
        "builtins": """
            BaseException Exception ArithmeticError AssertionError AttributeError BlockingIOError BrokenPipeError
            BufferError ConnectionError DeprecationWarning EOFError FileExistsError FileNotFoundError
            FutureWarning ImportError IndexError InterruptedError IsADirectoryError KeyError KeyboardInterrupt
            LookupError MemoryError ModuleNotFoundError NameError NotADirectoryError NotImplementedError OSError
            FloatingPointError
            OverflowError PermissionError RecursionError ReferenceError RuntimeError RuntimeWarning StopIteration
            SyntaxError SystemError SystemExit TimeoutError TypeError UnboundLocalError UnicodeDecodeError
            UnicodeEncodeError UnicodeError UserWarning ValueError Warning ZeroDivisionError""",
        "collections": "ChainMap",
        "difflib": "Match",
        "functools": "_CacheInfo",
        "itertools": "repeat",
        "operator": "itemgetter",
        **dict.fromkeys(
            ("segmentation_models_pytorch.encoders._efficientnet", "efficientnet_pytorch.utils"),
            "BlockArgs GlobalParams",
        ),
        "shutil": "_ntuple_diskusage",
        "tokenize": "TokenInfo",
        "types": "GenericAlias",
        "ultralytics.utils": "IterableSimpleNamespace",
        "urllib.parse": "ParseResult SplitResult DefragResult ParseResultBytes SplitResultBytes",
    },
    KEEPS_FIRST: {
        "array": "_array_reconstructor",
        "collections": "defaultdict",
        **dict.fromkeys(_MULTIARRAY, "_reconstruct"),
        "torch._utils": "_rebuild_wrapper_subclass",
    },
    LISTS: {"builtins": "list tuple", "collections": "deque UserList", "inspect": "Signature"},
    HASHES: {"builtins": "set frozenset dict", "collections": "OrderedDict Counter UserDict"},
    READS: {
        "builtins": "int float complex str bytes bytearray bool slice range enumerate reversed zip",
        "collections": "UserString",
        "types": "SimpleNamespace MappingProxyType",
        "inspect": "Parameter",
        "datetime": "datetime date time timedelta timezone",
        **dict.fromkeys(
            ("pathlib", "pathlib._local"), "Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath"
        ),
        "decimal": "Decimal Context",
        "fractions": "Fraction",
        "ipaddress": "IPv4Address IPv4Interface IPv4Network IPv6Address IPv6Interface IPv6Network",
        "uuid": "UUID",
        "time": "struct_time",
        **dict.fromkeys(
            ("os", "posix", "nt"), "stat_result statvfs_result terminal_size times_result uname_result"
        ),
        "platform": "uname_result",
        "resource": "struct_rusage",
        "zoneinfo": "ZoneInfo ZoneInfo._unpickle",
        "random": "Random",
        **dict.fromkeys(("_io", "io"), "BytesIO StringIO"),
        "re": "_compile compile",
        "array": "array",
        "itertools": "count cycle",
        "string": "Template",
        "logging": "getLogger",
        "torch": "Size device Tensor",
        "torch._C": "Generator",
        "torch._utils": """
            _rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter _rebuild_qtensor
            _rebuild_sparse_tensor _rebuild_sparse_csr_tensor _rebuild_nested_tensor
            _rebuild_meta_tensor_no_storage _rebuild_device_tensor_from_numpy
            _rebuild_device_tensor_from_cpu_tensor""",
        "torch.nested._internal.nested_tensor": "_rebuild_njt",
        "torch.nn.parameter": "Parameter Buffer",
        "torch.nn.utils.rnn": "PackedSequence",
        "torch.return_types": "cummax cummin kthvalue max median min mode nanmedian qr slogdet sort svd topk",
        "torch.serialization": "_get_layout",
        "torch.torch_version": "TorchVersion",
        "torch.jit._pickle": """
            build_intlist build_doublelist build_boollist build_tensorlist build_tensor_from_id restore_type_tag""",
        "torch.distributed.device_mesh": "DeviceMesh _MeshLayout",
        "torch.distributed.tensor._dtensor_spec": "DTensorSpec TensorMeta ShardOrderEntry",
        "torch.distributed.tensor.placement_types": "Partial Replicate Shard _StridedShard",
        "torch.distributed._tensor.placement_types": "DTensorSpec TensorMeta Partial Replicate Shard",
        "torch.distributed.checkpoint.filesystem": "_StorageInfo _StoragePrefix",
        "numpy": """
            dtype ndarray float64 float32 float16 int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool bool_ str_
            bytes_ object_ void complex64 complex128 longlong ulonglong datetime64 timedelta64""",
        **dict.fromkeys(("numpy.core._internal", "numpy._core._internal"), "_convert_to_stringdtype_kwargs"),
        "numpy.ma.core": "_mareconstruct",
        **dict.fromkeys(_MULTIARRAY, "scalar ndarray dtype"),
        **dict.fromkeys(("numpy.core.numeric", "numpy._core.numeric"), "_frombuffer"),
        "fastcore.basics": "fastuple",
        "sklearn.tree._tree": "Tree",
    },
    UNCALLED: {
        "builtins": """
            object print Ellipsis NotImplemented NoneType len abs min max sum round sorted any all repr hash
            callable isinstance issubclass ord chr""",
        "types": "NoneType",
        "collections.abc": "Callable Hashable Iterable Iterator Mapping MutableMapping Sequence Set Sized",
        "numbers": "Number Complex Real Rational Integral",
        "contextlib": "nullcontext",
        "csv": "Dialect excel excel_tab unix_dialect",
        "traceback": "FrameSummary",
        "decimal": """
            Clamped DivisionByZero FloatOperation Inexact InvalidOperation Overflow Rounded Subnormal Underflow""",
        "enum": "Enum IntEnum Flag IntFlag StrEnum auto",
        "statistics": "NormalDist",
        "typing": """
            Any Union Optional Callable List Dict Tuple Literal Generic TypeVar Sequence Set FrozenSet Iterable
            Mapping Type ClassVar""",
        "inspect": "_empty",
        "dataclasses": "Field _MISSING_TYPE _HAS_DEFAULT_FACTORY_CLASS",
        **dict.fromkeys(
            ("operator", "_operator"),
            "or_ and_ add sub mul truediv floordiv mod pow neg eq ne lt le gt ge not_",
        ),
        "math": "sqrt exp log cos sin tan tanh floor ceil pi",
        "logging": "Logger",
        "torch": """
            Generator strided sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc jagged contiguous_format
            channels_last channels_last_3d preserve_format memory_format layout dtype qscheme""",
        "torch.nested._internal.nested_tensor": "NestedTensor",
        "torch.nn.parameter": "UninitializedParameter UninitializedBuffer",
        "torch.nn.functional": """
            relu relu_ relu6 gelu silu mish sigmoid tanh softmax log_softmax leaky_relu elu selu celu hardswish
            hardsigmoid hardtanh softplus softsign cross_entropy mse_loss l1_loss smooth_l1_loss nll_loss kl_div
            dropout normalize""",
        "torch._C._nn": "gelu silu mish elu leaky_relu hardswish hardsigmoid softplus nll_loss l1_loss mse_loss",
        **dict.fromkeys(
            ("torch.distributed.tensor", "torch.distributed.tensor._api", "torch.distributed._tensor.api"),
            "DTensor",
        ),
        "torch.distributed.checkpoint.metadata": """
            Metadata TensorStorageMetadata BytesStorageMetadata ChunkStorageMetadata MetadataIndex
            TensorProperties StorageMeta""",
        "numpy.dtypes": """
            BoolDType ByteDType Bytes0DType CLongDoubleDType Complex128DType Complex64DType DateTime64DType
            Float16DType Float32DType Float64DType Int16DType Int32DType Int64DType Int8DType IntDType LongDType
            LongDoubleDType LongLongDType ObjectDType ShortDType Str0DType StrDType StringDType TimeDelta64DType
            UByteDType UInt16DType UInt32DType UInt64DType UInt8DType UIntDType ULongDType ULongLongDType
            UShortDType VoidDType""",
        "numpy": "matrix record recarray",
        **dict.fromkeys(("numpy.rec", "numpy.core.records", "numpy._core.records"), "record recarray"),
        **dict.fromkeys(("numpy.ma", "numpy.ma.core"), "MaskedArray"),
        "numpy.random._mt19937": "MT19937",
        "numpy.random._pcg64": "PCG64 PCG64DXSM",
        "numpy.random._philox": "Philox",
        "numpy.random._sfc64": "SFC64",
        "numpy.random.bit_generator": "SeedSequence",
        "joblib.numpy_pickle": "NumpyArrayWrapper",
        **dict.fromkeys(
            (
                "pytorch_lightning.utilities.parsing",
                "lightning.fabric.utilities.data",
                "lightning_fabric.utilities.data",
            ),
            "AttributeDict",
        ),
        **dict.fromkeys(
            ("pytorch_lightning.callbacks.model_checkpoint", "lightning.pytorch.callbacks.model_checkpoint"),
            "ModelCheckpoint",
        ),
        **dict.fromkeys(
            ("pytorch_lightning.callbacks.early_stopping", "lightning.pytorch.callbacks.early_stopping"),
            "EarlyStopping",
        ),
        "omegaconf.dictconfig": "DictConfig",
        "omegaconf.listconfig": "ListConfig",
        "omegaconf.base": "ContainerMetadata Metadata",
        "omegaconf.nodes": "AnyNode IntegerNode FloatNode StringNode BooleanNode PathNode BytesNode EnumNode",
        "transformers.training_args": "TrainingArguments",
        "transformers.training_args_seq2seq": "Seq2SeqTrainingArguments",
        "transformers.trainer_pt_utils": "AcceleratorConfig",
        "accelerate.state": "PartialState",
        "accelerate.utils.dataclasses": "DeepSpeedPlugin",
        "deepspeed.runtime.fp16.loss_scaler": "LossScaler DynamicLossScaler",
        "deepspeed.utils.tensor_fragment": "fragment_address",
        "mmengine.logging.history_buffer": "HistoryBuffer",
        "fastcore.foundation": "L",
        "pyannote.audio.core.task": "Specifications",
    },
}
# Looked up by value when they are called, and by name with getattr.
_ENUMS = {
    "accelerate.utils.dataclasses": "DistributedType",
    "calendar": "Day Month",
    "deepspeed.runtime.zero.config": "ZeroStageEnum",
    "fastai.callback.fp16": "AMPMode",
    "fastai.layers": "NormType",
    "http": "HTTPStatus HTTPMethod",
    "inspect": "_ParameterKind",
    "lightning.pytorch.callbacks.early_stopping": "EarlyStoppingReason",
    "lightning.pytorch.trainer.states": "RunningStage TrainerFn TrainerStatus",
    "megatron.enums": "PositionEmbeddingType",
    "PIL.Image": "Dither Palette Quantize Resampling Transform Transpose",
    "pyannote.audio.core.task": "Problem Resolution",
    "re": "RegexFlag",
    "signal": "Signals Handlers",
    "socket": "AddressFamily SocketKind",
    "timm.layers.format": "Format",
    "torch.amp.grad_scaler": "OptState",
    "torch.ao.quantization.quant_type": "QuantType",
    "torch.distributed.checkpoint.metadata": "_MEM_FORMAT_ENCODING",
    "torch.distributed.fsdp.api": "BackwardPrefetch ShardingStrategy StateDictType",
    "torch.nn.utils.parametrizations": "_OrthMaps",
    "torchmetrics.utilities.enums": "AverageMethod ClassificationTask DataType MDMCAverageMethod",
    "torchvision.io.image": "ImageReadMode",
    "torchvision.transforms.autoaugment": "AutoAugmentPolicy",
    "torchvision.transforms.functional": "InterpolationMode",
    "torchvision.tv_tensors._bounding_boxes": "BoundingBoxFormat",
    "transformers.tokenization_utils_base": "TruncationStrategy",
    "transformers.trainer_utils": "FSDPOption HubStrategy IntervalStrategy SaveStrategy SchedulerType",
    "transformers.training_args": "OptimizerNames",
    "transformers.utils.generic": "PaddingStrategy TensorType",
    "uuid": "SafeUUID",
}
# Known by a rule of their own, in `call_rules`.
_RULED = {
    "builtins": "iter type",
    "copyreg": "_reconstructor __newobj__ __newobj_ex__",
    "_codecs": "encode",
    **dict.fromkeys(("functools", "_functools"), "partial"),
    "torch._tensor": "_rebuild_from_type_v2",
    "torch._utils": "_rebuild_parameter_with_state",
    "torch.storage": "_load_from_bytes",
    "numpy.random._pickle": "__randomstate_ctor __generator_ctor __bit_generator_ctor",
    "numpy.random.bit_generator": "__pyx_unpickle_SeedSequence",
}

# Layers: what is in a pickle of a whole model. Made without their constructor, they hold values.
_LAYERS = {
    "activation": """
        CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid LogSoftmax Mish
        MultiheadAttention PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid Softmax Softmax2d Softmin Softplus
        Softshrink Softsign Tanh Tanhshrink Threshold""",
    "batchnorm": "BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm",
    "channelshuffle": "ChannelShuffle",
    "container": "ModuleDict ModuleList ParameterDict ParameterList Sequential",
    "conv": "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d",
    "distance": "CosineSimilarity PairwiseDistance",
    "dropout": "AlphaDropout Dropout Dropout1d Dropout2d Dropout3d FeatureAlphaDropout",
    "flatten": "Flatten Unflatten",
    "fold": "Fold Unfold",
    "instancenorm": "InstanceNorm1d InstanceNorm2d InstanceNorm3d",
    "linear": "Bilinear Identity Linear NonDynamicallyQuantizableLinear",
    "loss": "BCELoss BCEWithLogitsLoss CrossEntropyLoss HuberLoss KLDivLoss L1Loss MSELoss NLLLoss SmoothL1Loss",
    "module": "Module",
    "normalization": "CrossMapLRN2d GroupNorm LayerNorm LocalResponseNorm RMSNorm",
    "padding": """
        ConstantPad1d ConstantPad2d ConstantPad3d ReflectionPad1d ReflectionPad2d ReflectionPad3d
        ReplicationPad1d ReplicationPad2d ReplicationPad3d ZeroPad1d ZeroPad2d ZeroPad3d""",
    "pixelshuffle": "PixelShuffle PixelUnshuffle",
    "pooling": """
        AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d
        AdaptiveMaxPool3d AvgPool1d AvgPool2d AvgPool3d FractionalMaxPool2d LPPool1d LPPool2d MaxPool1d
        MaxPool2d MaxPool3d MaxUnpool2d""",
    "rnn": "GRU GRUCell LSTM LSTMCell RNN RNNCell",
    "sparse": "Embedding EmbeddingBag",
    "transformer": """
        Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer""",
    "upsampling": "Upsample UpsamplingBilinear2d UpsamplingNearest2d",
}

ENUMS = frozenset().union(*(_names(f"{module}.", names) for module, names in _ENUMS.items()))
# What each known name does with its arguments.
DOES: dict[str, str] = {
    **dict.fromkeys(WEIGHTS_ONLY, UNCALLED),
    **{
        f"torch.nn.modules.{module}.{name}": UNCALLED
        for module, names in _LAYERS.items()
        for name in names.split()
    },
    **dict.fromkeys(ENUMS, READS),
    **{
        f"{module}.{name}": done
        for done, by_module in _DONE.items()
        for module, names in by_module.items()
        for name in names.split()
    },
}
KNOWN_NAMES = frozenset(DOES).union(*(_names(f"{module}.", names) for module, names in _RULED.items()))

# What torch writes by itself, and any other loader of its files knows.
TORCHS_OWN = WEIGHTS_ONLY | {name for name in KNOWN_NAMES if name.startswith("torch.distributed.")}
