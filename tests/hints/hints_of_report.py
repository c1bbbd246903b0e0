"""What is wrong with a table, a figure, a file to write, a result to read, a rule and a threshold."""

from pathlib import Path

from modelscope_cli.shell.app import run

ROWS = """
summary {TINY} --columns nme
summary {TINY} --columns ,
summary {TINY} --sort qqqq
summary {TINY} --sort params:up
stats {T} --plot all.foo
stats {T} --plot new_folder/all.png
stats {T} -o folder.csv
stats {T} -o pipe.csv
stats {T} -o there.csv
stats {T} --table batch-norm
featuremaps {T} --cmap virids
featuremaps {T} --cmap qqqq
featuremaps {T} --out dot.png
featuremaps {T} --out full
featuremaps {T} --out dot.png/below
schema qqqq
schema stat
demo full
demo dot.png/demo
report lost
report folder
report text.jpg
report page.html --force
report wrong.json
report pipe.json

# rules
check {TINY} --baseline lost.json
check {TINY} --baseline wrong.json
check {TINY} --baseline future.json
check {TINY} --baseline old.json
check {TINY} --baseline strange.json
check {TINY} --baseline of_another.json
check {TINY} --set MS202=2
check {TINY} --select MS5
check many_images --select MS804
check {TINY} half_images
check {TINY} --baseline of_stats.json
check {TINY} --update-baseline
check {TINY} --update-baseline --baseline page.html
check {TINY} --select MS999
check {TINY} --select qqqq
# one thing after the other
check {T} --select MS801 ~> the folder of images
check two --select MS101
check {TINY} --ignore MS
check {TINY} --set MS202
check {TINY} --set MS202=x
check {TINY} --max-params x
check {TINY} --fail-on eror
rules qqqq
check {TINY} --baseline folder

# from Python
>>> ms.stats(net, x).plot('curve') => ms.summary(net).to_rows()
>>> ms.grads(net, x).plot(picture='qqqq') => ms.grads(net, x).plot(picture='flow')
>>> ms.weights('tiny.safetensors').plot() => ms.weights('tiny.safetensors').to_rows()
>>> ms.attack(net, 'dot.png', restarts=0) => ms.attack(net, 'dot.png', restarts=1, steps=2)
>>> testing.assert_budget(net) => testing.assert_budget(net, params='25M')
>>> ms.ablate(net, x, method='halve') => ms.ablate(net, x, method='zero')
>>> ms.train(net, pictures=20, size=8, steps=2).plot(picture='trainin') => 1
"""


def _project(text):
    Path("pyproject.toml").write_text(text)


def forced_project_without_toml(patch):
    _project("[tool")
    return "check {TINY} !> looks at the file"


def forced_project_without_table(patch):
    _project("[tool]\nmodelscope = 3\n")
    return "check {TINY} => check {TINY} --help"


def forced_unknown_key(patch):
    _project("[tool.modelscope]\nselekt = ['MS1']\n")
    return "check {TINY} => check {TINY} --help"


def forced_thresholds_without_table(patch):
    _project("[tool.modelscope]\nthresholds = 3\n")
    return "check {TINY} => check {TINY} --help"


def forced_near_miss(patch):
    _project("[tool.mscope]\nselect = 'MS1'\n")
    return "check {TINY} => check {TINY} --help"


def forced_number_for_a_name(patch):
    _project("[tool.modelscope]\nbaseline = 3\n")
    return "check {TINY} => check {TINY} --help"


def forced_number_for_names(patch):
    _project("[tool.modelscope]\nselect = 3\n")
    return "check {TINY} => check {TINY} --help"


def _refused(*given, **options):
    raise PermissionError(13, "Permission denied")


def forced_two_results_on_a_page(patch):
    for name in ("a", "b"):
        assert run(f"stats -m models.py:Tiny -o {name}.json --quiet".split()) == 0
    assert run(["report", "a.json", "b.json", "--html", "both.html", "--quiet"]) == 0
    return ">>> ms.read('both.html') => ms.read('a.json')"


def forced_results_of_two_commands(patch):
    assert run(["stats", "-m", "models.py:Tiny", "-o", "a.json", "--quiet"]) == 0
    assert run(["summary", "models.py:Tiny", "-o", "b.json", "--quiet"]) == 0
    return "report a.json b.json --html c.html => report a.json a.json --html c.html"


def forced_full_disk(patch):
    def write(*given):
        raise OSError(28, "No space left on device")

    patch.setattr("pathlib.Path.write_bytes", write)
    return "stats {T} -o new.csv"


def forced_folder_of_others(patch):
    patch.setattr("os.access", lambda *given: False)
    return "stats {T} -o new.csv"


def forced_place_of_others(patch):
    patch.setattr("pathlib.Path.mkdir", _refused)
    return "featuremaps {T} !> needs a folder that may be written to"


def forced_named_place_of_others(patch):
    patch.setattr("pathlib.Path.mkdir", _refused)
    return "featuremaps {T} --out new !> needs a folder that may be written to"


def forced_result_of_others(patch):
    patch.setattr("pathlib.Path.read_bytes", _refused)
    patch.setattr("pathlib.Path.open", _refused)
    return "report wrong.json --html new.html"


def forced_project_of_others(patch):
    _project("")
    patch.setattr("pathlib.Path.read_text", _refused)
    return "check {TINY}"


def forced_no_samples(patch):
    patch.setattr("modelscope_cli.examples._HERE", Path("folder"))
    return "demo new !> installs a package"


def forced_endless_nesting(patch):
    patch.setattr("modelscope_cli.records.nesting._FRAMES", 0)
    nest = "def nest():\n    model = nn.Sequential()\n    for _ in range(400):\n        model = nn.Sequential(model)\n"
    Path("deep.py").write_text(f"from torch import nn\n{nest}    return model\n")
    return "summary deep.py:nest --input-shape 1,3,8,8 => summary {TINY}"


FORCED = [value for name, value in list(globals().items()) if name.startswith("forced_")]
_DISK = "needs a disk that fails in the middle of a run"
EXCUSED = {
    "report/folder.py open: error.reason": _DISK,
    "report/folder.py _take_in: f'ls {shlex.quote(str(target))}'": "needs two runs that write to one folder at once",
    "report/page/results.py save_page: '--large   or fewer layers by --layer'": "needs a page above 25 MB",
    "report/notebook.py _draw: 'print(record)'": "needs a record without rows",
}
