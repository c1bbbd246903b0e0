"""What is wrong with a layer pattern, with `--hook`, and with a forward."""

ROWS = """
stats {T} -l nothing
stats {T} -l cnov
stats {T} -l conv,relu
stats {T} -l 1
stats {T} -l ''
stats {T} -l conv@x
stats {T} -l conv@1,2 ~> has 1 call
# escaped, it is a pattern
stats {T} -l 're:[' ~> matches no layer
stats {T} -l conv@0
stats {T} -l conv@9
stats {T} -l conv@1..-2
stats {T} -l conv#9
stats {T} --exclude nothing
stats {T} --exclude conv --exclude 're:.*'
summary {TINY} --freeze nothing
grads {T} --freeze cnov
grads {T} --train-only nothing
prune {T} -l conv@1
stats {T} --hook zero@nothing
stats {T} --hook zero@cnov
stats {T} --hook zero@conv@0
stats {T} --hook zero
stats {T} --hook zero@
stats {T} --hook zer@conv
stats {T} --hook qqqqqq@conv
stats {T} --hook prre:zero@conv
stats {T} --hook 'zero[0@conv'
stats {T} --hook 'zero[0]x@conv'
stats {T} --hook 'scale[0]=2@conv'
stats {T} --hook 'zero[x]@conv'
stats {T} --hook 'zero[3..1]@conv'
stats {T} --hook 'zero[99]@conv'
stats {T} --hook 'zero[0][1]@conv'
stats {T} --hook 'zero(x)@conv'
stats {T} --hook 'zero(3)@conv'
stats {T} --hook scale@conv
stats {T} --hook scale=1,2@conv
stats {T} --hook scale=x@conv
stats {T} --hook clamp=1,0@conv
stats {T} --hook zero=1@conv
stats {T} --hook call@conv
stats {T} --hook 'call=mine.py:look[0]@conv'
stats {T} --hook call=mine.py:thre@conv
stats {T} --hook call=lost.py:look@conv
stats {T} --hook call=mine.py:number@conv
stats {T} --hook call=mine.py:mean@conv => stats {T} --hook call=mine.py:three@conv
stats {T} --hook call=mine.py:wrong@conv => stats {T} --hook call=mine.py:three@conv
stats {T} --hook save=t.safetensors@conv --hook save=t.safetensors@head
stats {T} --hook grad:zero@conv
stats -m models.py:Tiny -c nan.safetensors --hook raise-on-nan@conv
stats -m models.py:Misfit
stats -m models.py:Raw
stats {T} --mode train --input-shape 1,3,4,4
stats dot.png -m models.py:Lone --mode train
stats -m models.py:Dict --input z=1,3,16,16
stats -m exported.pt2:x --mode train

# from Python
>>> ms.hook(Tiny(), 'print@conv@1').__enter__() => ms.hook(Tiny(), 'print@conv@1', args=x).__enter__()
>>> ms.stats(net, x, hook=[('conv', print)]) => ms.stats(net, x, hook=[('forward', 'conv', lambda m, a, o: None)])
>>> ms.stats(net, x, hook=[('backwards', 'conv', print)]) => ms.stats(net, x, hook=[('forward', 'conv', lambda m, a, o: None)])
>>> ms.stats(net, x, hook=[('forwrd', 'conv', print)]) => ms.stats(net, x, hook=[('forward', 'conv', lambda m, a, o: None)])
"""


def forced_out_of_memory(patch):
    def run(*given, **options):
        raise MemoryError("out of memory")

    patch.setattr("torch.nn.Conv2d.forward", run)
    return "stats {T} !> where the memory suffices"


FORCED = [forced_out_of_memory]
EXCUSED = {
    "hooks/layers.py refuse_layouts: 'modelscope stats ...   needs none'": "needs a parameter that is sparse or nested",
    "hooks/layers.py set_training: '--mode eval'": "needs a program of torch.export, seconds to make",
    "hooks/session.py _refuse_lazy: 'let the factory run the model once on a dummy batch and return it'": "models with lazy layers are run once beforehand",
}
