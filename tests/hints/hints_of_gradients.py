"""What is wrong with `grads` and `attack`."""

ROWS = """
grads {T} --loss qqqq
grads {T} --loss cross-entrpy
grads {T} --loss mse --label-smoothing 0.1
grads {T} --label-smoothing 2
grads {T} --weight-decay -1
grads {T} --clip-norm 1 --clip 1
grads {T} --clip 0
grads {T} --clip-activations 1 --full-backward
grads {T} --vanishing 2 --exploding 1
grads {T} --freeze relu
grads {T} --freeze 're:.*'
grads -m models.py:Frozen
grads -m models.py:Bare
grads -m models.py:Detached
grads -m models.py:Whole
grads -m models.py:One --target 3
grads -m models.py:One --label-smoothing 0.1
grads -m models.py:One --loss cross-entropy
grads {T} --loss nll
grads {T} --loss mse --target logit:[3]
grads -m models.py:Halves --loss logit --target logit:b[3]
grads {T} --loss mine.py:number
grads {T} --loss mine.py:not_scalar => grads {T} --loss mine.py:mean
grads {T} --loss mine.py:without_graph => grads {T} --loss mine.py:mean
grads -m models.py:Square --loss mine.py:with_target => grads -m models.py:Square --loss mine.py:mean
grads {T} --loss mine.py:mena
grads -m models.py:InPlace --full-backward
grads {T} --hook call=mine.py:in_place@bn => grads {T} --hook call=mine.py:three@bn
grads -m models.py:Quantized => grads {T}
grads -m fasterrcnn_mobilenet_v3_large_320_fpn --weights none --mode eval !> a detector takes seconds
grads -m models.py:NoBackward

# attack
attack dot.png {T} --method fgsm --steps 3
attack dot.png {T} --method ifgsm --restarts 3 --steps 2
attack dot.png {T} --step-size 0 --steps 2
attack dot.png {T} --epsilon x --steps 2
attack dot.png {T} --epsilon=-1 --steps 2
attack dot.png {T} --epsilon 8 --steps 2
attack dot.png {T} --epsilon 1e-320 --steps 2
attack dot.png {T} --norm l2 --epsilon 99999 --steps 2
attack dot.png {T} --target logit:[0] --steps 2
attack dot.png {T} --target predicted --steps 2
attack dot.png -m models.py:Tiny -c nan.safetensors
attack dot.png -m models.py:One
attack dot.png -m models.py:Detached
attack dot.png -m models.py:Steep --steps 2
attack dot.png -m models.py:Infinite --steps 2
attack dot.png -m models.py:Two
attack dot.png -m raft_small --weights none
attack image.pt {T} => attack dot.png {T} --steps 2
attack two {T} => attack two/a.png {T} --steps 2

# from Python
>>> ms.grads(net, x, repeat=0) => ms.grads(net, x, repeat=3)
>>> ms.grads(net, x, loss=3) => ms.grads(net, x, loss='cross-entropy')
>>> ms.grads(net, x, mode='trian') => ms.grads(net, x, mode='train')
>>> ms.attack(net, {'x': x}) => ms.attack(net, 'dot.png', steps=2)
"""


FORCED = []
EXCUSED = {
    "analysis/gradients/measure.py _forward: '--target 1'": "needs a detector of one class, seconds to run",
}
