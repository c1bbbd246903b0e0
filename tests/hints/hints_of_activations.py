"""What is wrong with `stats` and `featuremaps`."""

ROWS = """
stats {T} --correlation
stats {T} --attention
stats -m models.py:Unused --layer spare
stats {T} --mode trian
featuremaps two {T}
featuremaps {T} --overlay
featuremaps dot.png {T} --channels 1 --strongest
featuremaps dot.png {T} --channels x
featuremaps dot.png {T} --channels 3..1
featuremaps dot.png {T} --scale qqqq
featuremaps dot.png -m models.py:Unused --layer spare
featuremaps dot.png {T} --attention
featuremaps {T} --top-images 3
featuremaps dot.png {T} --top-images 3 --overlay
featuremaps dot.png -m models.py:LazyRaw

# from Python
>>> ms.stats(net, x, dtype='float16') => ms.stats(net, x)
>>> ms.stats(net, x, mode='trian') => ms.stats(net, x, mode='train')
"""

FORCED = []
EXCUSED = {
    "analysis/activations/stats.py _attention: 'modelscope summary ...'": "needs a model whose attention is there and not run",
    "analysis/subject.py with_shapes: shapes_of(args)": "a model with lazy layers that fails, as hints_of_hooks has one that fails",
}
