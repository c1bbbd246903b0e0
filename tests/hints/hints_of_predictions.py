"""What is wrong with `predict`, and with what a model gives, for every command that follows a part of it."""

ROWS = """
grads {T} --target box:x ~> has no meaning here
grads {T} --target box:0
grads {T} --target mask: ~> has no meaning here
grads {T} --target similar:
grads {T} --target logit:3
grads {T} --target logit:[10]
grads {T} --target logit:x[1]
grads {T} --target 10
grads {T} --target star
grads dot.png -m models.py:Tiny -c alike.safetensors --target b
ablate star.png --model tiny_resnet.py:TinyResNet --checkpoint tiny_resnet.safetensors --size 32 --target starr
grads resnet18 --weights none --target starr !> a zoo model takes seconds
predict dot.png {T} --labels ten.txt --temperature 0
ablate two {T} --target 'logit:[0,3]'
grads {T} --model-arg num_classes=3 --loss logit --target 'logit:[0,1,2]'
grads -m models.py:Maps --target box:0
grads -m models.py:Maps --target mask:9
grads -m models.py:Dark --target mask:3
explain dot.png -m models.py:Vectors --target 3
explain dot.png -m models.py:OneBox --target box:7
explain dot.png -m models.py:OneBox --target logit:9 ~> has no tensor
# the class is not found either, and nothing leads to it
explain dot.png -m models.py:Boxes --target box:0 ~> is exactly zero
ablate dot.png -m models.py:Silent
# it gives several rows for one image as well
predict dot.png tall.png -m models.py:Tokens ~> given 1 images

# predict
predict dot.png {T} --threshold 0.3
predict dot.png {T} --doctor --top 3
predict dot.png {T} --doctor --hook zero@conv
predict dot.png {T} --doctor --resume
predict image.pt {T} --doctor => predict dot.png {T} --doctor
predict {T} --input x=dot.png --doctor => predict dot.png {T} --doctor
predict dot.png -m fcn_resnet50 --weights none --doctor !> a zoo model takes seconds
predict dot.png -m models.py:Tiny -c nan.safetensors --doctor
predict dot.png -m models.py:Headless
predict dot.png -m models.py:One
train -m models.py:Maps --pictures 20 --size 8 --steps 2
predict dot.png {T} --labels list.txt
predict dot.png {T} --scores relu

# the truth
predict two {T} --truth folders --top 3 --labels ten.txt
predict two {T} --truth folders
predict dot.png {T} --truth unclear.csv --labels ten.txt => predict dot.png {T} --truth several2.csv --labels ten.txt
predict dot.png {T} --truth several.csv --labels ten.txt
predict image.pt {T} --truth folders => predict two {T} --truth folders --labels ten.txt
predict two/a.png -m models.py:OneBox --truth folders
predict two -m models.py:One --truth folders --scores sigmoid
predict two -m models.py:Tiny -c nan.safetensors --truth folders --labels ten.txt
predict two {T} --labels ten.txt --table confusions
predict dot.png -m models.py:Maps --truth masks.csv --table calibration
predict two {T} --truth folders --labels ten.txt --table pixels
predict dot.png -m models.py:Maps --truth masks.csv --scores sigmoid
predict dot.png -m models.py:Maps --truth masks_void.csv => predict dot.png -m models.py:Maps --truth masks.csv
predict dot.png -m models.py:Maps --truth masks_large.csv => predict dot.png -m models.py:Maps --truth masks.csv
predict dot.png -m models.py:Maps --truth masks_high.csv => predict dot.png -m models.py:Maps --truth masks.csv
predict dot.png -m models.py:Maps --truth masks_two.csv => predict dot.png -m models.py:Maps --truth masks.csv
predict tall.png -m models.py:Maps --truth masks_tall.csv
predict dot.png -m models.py:Maps --truth folders

# from Python
>>> ms.predict(net, truth=[0]) => ms.predict(net, ['dot.png'], truth=[0])
>>> ms.predict(net, [Image.open('dot.png')], truth='folders') => ms.predict(net, ['dot.png'], truth='truth.csv') if 0 else 1
>>> ms.doctor(net, x) => ms.doctor(net, ['dot.png'])
>>> ms.predict(net, ['dot.png']).plot() => ms.predict(net, ['dot.png'], truth='truth2.csv').plot()
>>> ms.explain(Sized(), x[:1], target='similar:dot.png', receipt=False) => ms.explain(Sized(), 'dot.png', target='similar:star.png', receipt=False)
>>> ms.check_images([]) => ms.check_images('two')
"""

FORCED = []
EXCUSED = {
    "analysis/predictions/doctor.py _open: 'modelscope summary ...   shows its output'": "needs a model of timm or transformers without a head",
}
