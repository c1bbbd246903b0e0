"""What is wrong with a model's name, its code, its weights, and where it is to run."""

import os
import sys
import types
from dataclasses import replace
from pathlib import Path

from modelscope_cli.checkpoints.reading import read_contents
from modelscope_cli.models.identify import identify
from modelscope_cli.models.names import timm_names

ROWS = """
summary models.py::Tiny
summary 'models.py:Tiny()'
summary resnet3
summary nothing_like_it
models resnett
models timm:qqqqqqqq
summary torch.nn.ReLUU ~> did you mean
summary torch.nn.ReLU
# the first model of the file always fails
summary models.py ~> no luck today
summary lost.py ~> no file 'lost.py'
summary lost.py:X
summary {TINY} --num-classes 0
stats {T} -c tiny.safetensors -w IMAGENET1K_V1
summary {TINY} --key model
summary {TINY} --model-arg width
summary {TINY} --model-arg width=4 --model-arg width=8
summary {TINY} --model-arg widht=4
summary models.py:Needy
summary models.py:Configured
summary models.py:made --model-arg width=3
summary models.py:Bare --model-arg width=3
summary resnet18 --model-arg num_classes=5
summary resnet18 --model-arg depth=5
stats resnet18 -w IMAGENET1K_V9 ~> cannot be had
stats resnet18 -w qqqq ~> cannot be had
stats {T} -w DEFAULT
summary models.py:Fixed --num-classes 5
stats resnet18 -w DEFAULT --input-shape 1,3,32,32
stats resnet18 -w none --num-classes 0 --input-shape 1,3,32,32

# code
summary models.py:Tny
summary models.py:number
# what it needs is not known
summary models.py:number_of ~> made an int
summary models.py:nothing
summary alien.py:number ~> has no attribute 'x'
summary no_such_package.models:X
summary torch.lost:X
summary 9x.y:X
summary .x:X
summary raises.py:X
summary syntax.py:X
summary models.py:Unbuildable
summary 'a b.py:X'

# trainers, hollow models, downloads, and names of other libraries
summary models.py:Trainers
summary models.py:AroundTrainers
stats models.py:hollow --input-shape 1,3,32,32 => stats {T} --input-shape 1,3,32,32
summary models.py:downloads
summary no_tensors.pt => summary {TINY} -c tiny.pt
summary lost.json
summary torchvision:squeezenet1_1
summary {TINY} -c wide.safetensors

# where
stats {T} -d cudda
stats {T} -d cuda:99
stats {T} --dtype float33

# checkpoints
summary {TINY} -c text.jpg => summary {TINY} -c tiny.safetensors
summary {TINY} -c no_tensors.pt => summary {TINY} -c tiny.pt
summary {TINY} -c cut.safetensors => summary {TINY} -c tiny.safetensors
summary {TINY} -c evil.pt
summary {TINY} -c foreign.safetensors
summary {TINY} -c two.safetensors --num-classes 3
summary {TINY} -c parts.safetensors
summary {TINY} -c misshaped.safetensors
# which model it is, only the person knows
summary tiny.safetensors -c other.safetensors ~> does not hold the weights
summary foreign.safetensors ~> is for another
summary tiny.safetensors
summary program.pt
summary headless.safetensors

# from Python
stats quantized_mobilenet_v2 -w DEFAULT -d cpu --dtype bfloat16 ~> cannot be had
stats quantized_mobilenet_v2 -w DEFAULT --num-classes 5 --input-shape 1,3,32,32 !> a second
>>> ms.summary('models.py:Tiny', seed=2**70) => ms.summary('models.py:Tiny', seed=0)
>>> ms.summary(3) => ms.summary('models.py:Tiny')
"""

_FILE = "squeezenet1_1-b8a52dc0.pth"


def _without_timm(patch):
    patch.setitem(sys.modules, "timm", None)
    timm_names.cache_clear()  # and again after each of these


def forced_without_timm(patch):
    _without_timm(patch)
    return "summary timm:resnet18 !> installs a package"


def forced_name_of_timm(patch):
    _without_timm(patch)
    patch.setattr("modelscope_cli.models.hubs.is_in_timm", lambda name: True)
    return "summary vit_tiny ~> needs the package 'timm'"


def forced_no_other_library(patch):
    patch.setattr("modelscope_cli.models.hubs.find_spec", lambda name: None)
    return "summary yolov8n !> installs a package"


def forced_other_library(patch):
    patch.setattr("modelscope_cli.models.hubs.find_spec", lambda name: True)
    return "summary ViT-B-32 !> needs the package"


def forced_saved_whole(patch):
    contents = read_contents(Path("foreign.safetensors"))
    whole = replace(contents, foreign=("models.Tiny", "torch.nn.modules.conv.Conv2d"))
    patch.setattr("modelscope_cli.models.model_of_checkpoint.read_contents", lambda path, key: whole)
    return "summary foreign.safetensors ~> is for another"


def forced_no_timm(patch):
    patch.setattr("modelscope_cli.models.model_of_checkpoint.timm_names", tuple)
    recognised = identify(read_contents(Path("headless.safetensors")).shapes())
    found = replace(
        recognised, score=1.0, candidates=("timm:vit_tiny",), missing=(), unexpected=(), misshaped=()
    )
    patch.setattr("modelscope_cli.models.model_of_checkpoint.identify", lambda shapes: found)
    return "summary tiny.safetensors !> installs a package"


def forced_several_that_fit(patch):
    recognised = identify(read_contents(Path("headless.safetensors")).shapes())
    found = replace(recognised, score=1.0, candidates=("squeezenet1_1", "squeezenet1_0"))
    patch.setattr("modelscope_cli.models.model_of_checkpoint.identify", lambda shapes: found)
    return "summary headless.safetensors ~> does not fit"


def forced_hub_of_timm(patch):
    _without_timm(patch)
    patch.setattr("modelscope_cli.models.hubs.find_spec", lambda name: True)
    return "summary timm:no_such_one ~> no model matches"


def forced_hub_without_name(patch):
    patch.setattr("modelscope_cli.models.hubs.find_spec", lambda name: True)
    return "summary hf:./lost !> downloads"


def forced_hub_folder(patch):
    patch.setattr("modelscope_cli.models.hubs.find_spec", lambda name: True)
    return "summary hf:./one"


def forced_damaged_download(patch):
    def download(*given, **options):
        raise RuntimeError("invalid hash value")

    patch.delenv("MSCOPE_OFFLINE")
    patch.setattr("torch.hub.download_url_to_file", download)
    return "stats squeezenet1_1 -w DEFAULT --input-shape 1,3,32,32"


def _cached(patch, content=b"nothing"):
    folder = Path(os.environ["TORCH_HOME"]) / "hub" / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _FILE).write_bytes(content)


def forced_damaged_file(patch):
    _cached(patch)
    return "stats squeezenet1_1 -w DEFAULT --input-shape 1,3,32,32 ~> offline and not in the cache"


def forced_file_of_something_else(patch):
    _cached(patch)
    patch.setattr("modelscope_cli.models.initialise.file_sha256", lambda path: "b8a52dc0" * 8)
    return "stats squeezenet1_1 -w DEFAULT --input-shape 1,3,32,32 ~> offline and not in the cache"


def forced_file_of_other_weights(patch):
    _cached(patch, Path("tiny.pt").read_bytes())
    patch.setattr("modelscope_cli.models.initialise.file_sha256", lambda path: "b8a52dc0" * 8)
    return "stats squeezenet1_1 -w DEFAULT --input-shape 1,3,32,32 ~> offline and not in the cache"


def forced_out_of_memory(patch):
    def build(*given):
        raise RuntimeError("out of memory")

    patch.setattr("modelscope_cli.models.zoo._call", build)
    return "stats squeezenet1_1 -w none --input-shape 1,3,32,32 !> where the memory suffices"


def forced_device_without_memory(patch):
    def move(self, **options):
        raise RuntimeError("out of memory")

    patch.setattr("torch.nn.Module.to", move)
    return "stats {T} !> where the memory suffices"


def forced_package_of_the_same_name(patch):
    other = types.ModuleType("pkg")
    other.__path__ = ["b/pkg"]
    patch.setitem(sys.modules, "pkg", other)
    patch.setitem(sys.modules, "pkg.net", types.ModuleType("pkg.net"))
    return "summary a/pkg/net.py:Net"


FORCED = [value for name, value in list(globals().items()) if name.startswith("forced_")]
_TIMM = "needs timm, which is an extra, and where it is there a download"
_TRANSFORMERS = "needs transformers, which is an extra"
EXCUSED = {
    "models/from_libraries.py timm_architecture: f'{_OPTION_OF[key]} {model_args[key]}'": _TIMM,
    "models/from_libraries.py published: f\"--model timm:{arch}{(f'.{tags[0]}' if tags else '')}\"": _TIMM,
    "models/from_libraries.py _find_file: hint": _TIMM,
    "models/from_libraries.py _create: 'leave out --model-arg'": _TIMM,
    "models/from_libraries.py _create: f'modelscope summary timm:{name}'": _TIMM,
    "models/from_libraries.py fill_from_hf: '--weights DEFAULT'": _TRANSFORMERS,
    "models/from_libraries.py _configure: 'leave out --model-arg'": _TRANSFORMERS,
    "models/from_libraries.py _explained: hint": _TRANSFORMERS,
    "models/checkpoint.py _from_contents: hint": "needs a tensor of a class that torch alone can read",
    "models/checkpoint.py _from_contents: \"torch.save(model.state_dict(), 'model.pt')   makes one that does\"": "needs a file that torch refuses and that holds no names",
    "models/fit.py load_state: f'modelscope summary {shlex.quote(name)}'": "needs a module whose own load_state_dict fails",
    "models/hubs.py _check_folder: f'--model {shlex.quote(name)}'": _TRANSFORMERS,
    "models/load.py _not_placed: '--device cpu'": "needs a device whose memory is full",
    "models/from_libraries.py fetch: f'hf download {name} or --weights none'": "needs a download that fails",
}
