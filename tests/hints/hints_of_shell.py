"""What is wrong with a command line as such."""

import io

ROWS = """
predict {T} dot.png model.onnx
featuremaps {T} -o new --layer conv --size 16
summary
predict {T}
summary {TINY} -m models.py:Few
stats {TINY} dot.png -m models.py:Few --size 16
stats resnet188 !> a zoo model takes seconds
stats {T} --format jsn
stats {T} --format qqqq
stats {T} --json --format csv
stats {T} -o result.foo
stats {T} -o page.htm
stats {T} --html two.png
stats {T} --html .
stats {T} --no-such-option
nonsense
grads {T} --no-save --out new
ablate dot.png {T} --layer conv --channels 4
help qqqq
help stat
check two --mode train
check two {T} --against again
check two --seed 3 --against again
check --against two
check two --against again --out new
train few few {T} --size 8 --steps 3 --batch 4
stats {TINY} models.py:Few --size 16
stats {TINY} model=x top=3 --size 16 ~> are two models
predict model={TINY} source=dot.png imgsz=16
predict {TINY} dot.png tiny.safetensors --size 16
weights {TINY}
report {TINY}
stats {TINY} --layer conv relu --size 16
"""


def forced_name_of_timm(patch):
    patch.setattr("modelscope_cli.models.hubs.is_in_timm", lambda word: True)
    return "stats vit_tiny_patch16 ~> needs the package 'timm'"


def forced_full_disk(patch):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    patch.setattr("rows.OUT", Full)
    return "models resnet18"


def _inside(patch, error):
    def end(*given):
        raise error

    patch.setattr("modelscope_cli.models.catalogue.list_models", end)


def forced_out_of_memory(patch):
    def end(*given, **options):
        raise MemoryError

    patch.setattr("modelscope_cli.analysis.subject.Subject.open", end)
    return "stats {T} !> where the memory suffices"


def forced_stream(patch):
    _inside(patch, OSError(28, "No space left on device"))
    return "models resnet18 !> where the disk has space"


def forced_file(patch):
    _inside(patch, OSError(13, "Permission denied", "dot.png"))
    return "models resnet18"


FORCED = [value for name, value in list(globals().items()) if name.startswith("forced_")]
EXCUSED = {
    "shell/app.py _crashed: hint": "a bug of ours, which has another exit code: tests/cli/test_exit_codes.py"
}
