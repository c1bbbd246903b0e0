"""What is wrong with `diff`."""

from modelscope_cli.shell.app import run

ROWS = """
diff {TINY} tiny.safetensors other.safetensors
diff tiny.safetensors other.safetensors tiny.safetensors
diff
diff {TINY}
diff {TINY} -m models.py:Few --b-seed 1
diff tiny.safetensors foreign.safetensors => diff tiny.safetensors other.safetensors
diff tiny.safetensors other.safetensors --tolerance -1
diff tiny.safetensors other.safetensors --b-dtype bfloat16
diff tiny.safetensors other.safetensors -l conv ~> does not hold the weights of a model
diff tiny.safetensors dot.png {T} -c other.safetensors --b-seed 1
diff tiny.safetensors other.safetensors dot.png {T} --b-checkpoint tiny.safetensors
diff {TINY} models.py:Elsewhere --input-shape 1,3,16,16
diff {TINY} {TINY} dot.png --b-seed 1 --hook save=t.safetensors@conv
diff {TINY} dot.png --b-seed 1 --key model ~> is not in
diff {TINY} dot.png --b-seed 1 --layer bn.x
diff models.py:Unused dot.png --b-seed 1 --layer spare
diff models.py:Unused dot.png --b-seed 1 --exclude 're:^(?!spare)'

# from Python
>>> ms.diff(net, net, inputs=x) => ms.diff(net, Tiny(), inputs=x)
>>> ms.diff('models.py:Tiny', 'dot.png', inputs=x) => ms.diff('models.py:Tiny', 'models.py:Tiny', inputs=x)
>>> ms.diff(net, b_seed=3) => ms.diff(net, Tiny(), inputs=x)
>>> ms.diff(Uncopied(), b_dtype='float16', inputs=x) => ms.diff(Tiny(), b_dtype='float16', inputs=x)
>>> ms.diff(ms.load(net), ms.load(net), inputs=x) => ms.diff(ms.load(net), ms.load(Tiny()), inputs=x)
"""


def _saved(*commands):
    for number, command in enumerate(commands):
        assert run(f"{command} -o {number}.json --quiet".split()) == 0


def forced_results_with_a_run(patch):
    _saved("stats -m models.py:Tiny", "stats -m models.py:Tiny --seed 1")
    return "diff 0.json 1.json --layer conv"


def forced_results_with_settings_of_b(patch):
    _saved("stats -m models.py:Tiny", "stats -m models.py:Tiny --seed 1")
    return "diff 0.json 1.json --b-seed 3 => diff 0.json 1.json"


def forced_results_of_two_commands(patch):
    _saved("stats -m models.py:Tiny", "summary models.py:Tiny", "stats -m models.py:Tiny --seed 1")
    return "diff 0.json 1.json => diff 0.json 2.json"


def forced_results_of_weights(patch):
    _saved("weights tiny.safetensors")
    return "diff 0.json 0.json => diff tiny.safetensors other.safetensors"


EXCUSED = {
    "analysis/comparison/sides.py load_both: 'give a class or a factory, which makes a new one'": "such modules are copied before"
}
FORCED = [value for name, value in list(globals().items()) if name.startswith("forced_")]
