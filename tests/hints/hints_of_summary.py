"""What is wrong with the graph of a model, and with its measured columns."""

ROWS = """
summary {TINY} --graph net.png
summary {TINY} --graph net
summary {TINY} --graph one.html --html one.html
summary {TINY} --graph new_folder/net.svg
summary {TINY} --graph net.svg --color mac
summary {TINY} --graph net.svg --color qqqq
summary {TINY} --color params
summary {TINY} --columns name,tim
summary {TINY} --weights auto
summary {TINY} --device cpu

# from Python
>>> ms.summary('models.py:Tiny', device='cpu') => ms.summary('models.py:Tiny', device='cpu', measure=('time',))
>>> ms.summary(net, x, measure=('tim',)) => ms.summary(net, x, measure=('time',))
>>> ms.summary(net, x).graph() => ms.summary(net, x, flow=True).graph()
>>> ms.summary(net, x, flow=True).graph('net.png') => ms.summary(net, x, flow=True).graph('net.svg')
>>> ms.summary(net, x, flow=True).graph(color='time') => ms.summary(net, x, flow=True, measure=('time',)).graph()
"""

FORCED = []
EXCUSED = {}
