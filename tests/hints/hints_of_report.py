"""What is wrong with a table, a figure, a file to write, a result to read, a rule and a threshold."""

from pathlib import Path

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
report lost
report folder
report text.jpg
report page.html
report wrong.json
report pipe.json

# rules
check {TINY} --baseline lost.json
check {TINY} --baseline wrong.json
check {TINY} --baseline future.json
check {TINY} --update-baseline
check {TINY} --update-baseline --baseline page.html
check {TINY} --select MS999
check {TINY} --select qqqq
check {TINY} --select MS801
check {TINY} --ignore MS
check {TINY} --set MS202
check {TINY} --set MS202=x
check {TINY} --max-params x
check {TINY} --fail-on eror
rules qqqq
check {TINY} --baseline folder

# from Python
>>> ms.stats(net, x).plot('curve') => ms.summary(net).to_rows()
>>> ms.grads(net, x).plot('qqqq') => ms.grads(net, x).plot()
>>> ms.weights('tiny.safetensors').plot() => ms.weights('tiny.safetensors').to_rows()
>>> ms.prune(net).plot('qqqq') => 1
>>> ms.attack(net, 'dot.png', restarts=0) => ms.attack(net, 'dot.png', restarts=1, steps=2)
>>> ms.assert_budget(net) => ms.assert_budget(net, params='25M')
>>> ms.check(net, x, fail_on='eror') => 1
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


def forced_number_for_a_name(patch):
    _project("[tool.modelscope]\nbaseline = 3\n")
    return "check {TINY} => check {TINY} --help"


def forced_number_for_names(patch):
    _project("[tool.modelscope]\nselect = 3\n")
    return "check {TINY} => check {TINY} --help"


FORCED = [value for name, value in list(globals().items()) if name.startswith("forced_")]
EXCUSED = {}
