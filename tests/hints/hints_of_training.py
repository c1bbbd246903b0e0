"""What is wrong with `train` and `lrfind`."""

ROWS = """
train {L} --optimizer sdg
train {L} --optimizer qqqq
train {L} --init he
train {L} --norm-layer bach
train {L} --activation gelu
train {L} --schedule cosin
train {L} --batch 0
train {L} --batch 99999999999
train {L} --weight-decay -1
train {L} --lr 0
train {L} --lr 1e300
train {L} --label-smoothing 2
train {L} --clip-norm 0
train {L} --pictures 3
train {L} --vary inti=lsuv
train {L} --vary init
train {L} --vary lr=0.1,x
train {L} --vary norm-layer=batch,grup
train {L} --vary lr=0.1 --vary lr=1
train {L} --vary lr=1,2 --save-every 5
train {L} --freeze 're:.*'
train -m models.py:Frozen --pictures 20 --size 8 --steps 3 --batch 4
train {L} -c tiny.safetensors --init lsuv
train -m models.py:Plain --pictures 20 --size 8 --steps 3 --batch 4 --norm-layer group
train -m models.py:Plain --pictures 20 --size 8 --steps 3 --batch 4 --activation leaky
train -m models.py:Few --pictures 20 --size 8 --steps 3 => train {L}
train -m models.py:Raw --pictures 20 --size 8 --steps 3 ~> no luck today
train -m models.py:Lone --pictures 20 --size 8 --steps 3 --batch 1 ~> not a row of scores
train -m fcn_resnet50 --pictures 20 --size 8
lrfind {L} --from 1 --to 0.1
lrfind {L} --steps 2
lrfind {L} --smoothing 1
lrfind {L} --diverged 1

# data
train few few {T} --size 8 --steps 3 --batch 4
train few --data two {T} --size 8 --steps 3 --batch 4
train lost {T}
train dot.png {T}
train two {T}
train classes {T}
train alone {T}
train unreadable {T} --size 8 --steps 3 => train {F}
train {T} --loaders mine.py:pairs few --steps 3
train {T} --loaders mine.py:number => train {T} --loaders mine.py:pairs --steps 3
train {T} --loaders mine.py:words => train {T} --loaders mine.py:pairs --steps 3
train {T} --loaders mine.py:empty => train {T} --loaders mine.py:pairs --steps 3
train {T} --loaders mine.py:fails ~> shows
train {T} --loaders mine.py:wide --steps 3 => train {T} --loaders mine.py:pairs --steps 3
train {T} --loaders mine.py:pairs --patience 3 --steps 3
train {T} --loaders mine.py:once --vary lr=0.1,1 --steps 3 => train {T} --loaders mine.py:pairs --vary lr=0.1,1 --steps 3
train {L} --callback mine.py:number
train {L} --callback mine.py:Fails ~> shows

# from Python
>>> ms.train(Uncopied(), pictures=20, size=8, steps=2) => ms.train('models.py:Tiny', pictures=20, size=8, steps=2)
>>> ms.train(net, pictures=2, size=8, steps=2) => ms.train(net, pictures=20, size=8, steps=2)
>>> ms.train(net, pictures=20, size=8, steps=2, save_every=1) => ms.train(net, pictures=20, size=8, steps=2, save_every=1, out='new')
>>> ms.train(net, pictures=20, size=8, steps=2, batch=10**9) => ms.train(net, pictures=20, size=8, steps=2, batch=4)
>>> ms.lrfind(net, pictures=20, size=8, steps=2) => ms.lrfind(net, pictures=20, size=8, steps=3)
"""


def forced_out_of_memory(patch):
    def run(*given, **options):
        raise MemoryError("out of memory")

    patch.setattr("torch.nn.Conv2d.forward", run)
    return "train {L} !> where the memory suffices"


FORCED = [forced_out_of_memory]
EXCUSED = {}
