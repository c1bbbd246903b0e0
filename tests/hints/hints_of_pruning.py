"""What is wrong with `prune` and `ablate`."""

ROWS = """
prune {T} --amount 1
prune {T} --sweep 0.1,1.5
prune {T} --sweep 0.1,x
prune {T} --method l3
prune {T} --global --by-channel
prune dot.png {T} --method activation
prune {T} --method activation --by-channel
prune {T} -l relu
prune {T} --exclude 're:.*'
prune -m models.py:Bare
prune {T} --save-weights thin.pt
prune -m models.py:Tiny -c other.safetensors --save-weights other.safetensors
prune dot.png -m models.py:Unused --layer spare --method activation --by-channel
ablate {T} --by-channel
ablate {T} --no-save --force
ablate {T} --method halve
ablate -m models.py:Tiny -c nan.safetensors
ablate -m models.py:Whole -l ''
ablate dot.png -m models.py:Unused --layer spare
ablate dot.png -m models.py:Restless

# from Python
>>> ms.ablate(net, x, method='halve') => ms.ablate(net, x, method='zero')
>>> ms.ablate(net, x, by_channel=True) => ms.ablate(net, x, by_channel=True, layer='conv')
"""

FORCED = []
EXCUSED = {}
