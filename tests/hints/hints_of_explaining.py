"""What is wrong with `explain`."""

ROWS = """
explain dot.png {T} --require 'covering>0' --no-receipt --method hirescam
explain dot.png {T} --require qqqq
explain dot.png {T} --require 'road>0.1' --method hirescam
explain dot.png {T} --receipt qqqq
explain dot.png {T} --require 'qqqq>1'
explain dot.png {T} --require 'deletion<x'
explain dot.png {T} --require 'deletion<1e400'
explain dot.png {T} --against 3 --method gradcam
explain dot.png {T} --method gradcm
explain dot.png {T} --no-save --out new
explain star.png {T} --box 1,2,3
explain dot.png {T} --box 10,20,110,120
explain star.png {T} --box 9,9,3,3
explain dot.png {T} --box 1,1,9,9 --mask marked.png
explain dot.png {T} --mask large.png => explain dot.png {T} --mask marked.png
explain dot.png {T} --mask mask.png => explain dot.png {T} --mask marked.png
explain dot.png {T} --layer re:.
explain dot.png {T} --layer head
explain image.pt {T} --box 1,1,9,9 => explain dot.png {T} --box 1,1,9,9
explain many_images {T} --save-tensors maps.safetensors
explain numbers.pt -m models.py:Flat
explain dot.png -m models.py:Lines --method gradcam
explain dot.png -m models.py:Still --method gradcam
explain dot.png -m models.py:Sigmoid --method lrp
explain dot.png {T} --method rollout
explain dot.png -m models.py:OneBox --target box:0 --method finercam
explain dot.png -m models.py:Vectors --against 1
explain dot.png {T} --target 1 --against 1
explain dot.png -m models.py:Scripted --method gradcam

# from Python
>>> ms.explain(net, x, require='deletion<1', receipt=False) => ms.explain(net, ['dot.png'], receipt=False)
"""

FORCED = []
EXCUSED = {
    "analysis/explaining/one_image.py _because: '--method occlusion   needs no gradient'": "needs a quantized model",
    "analysis/explaining/followed.py seen: '--method integrated-gradients   needs no layer'": "needs a forward that goes another way each time, and notices",
    "analysis/explaining/layer.py follow: hint": "needs a compiled model, seconds to make",
    "analysis/explaining/layer.py no_gradient: 'leave out --layer   or name a layer before the last attention'": "needs a transformer",
    "analysis/explaining/scored.py not_connected: f'{shows}; --method occlusion needs no gradient'": "reached in hints_of_predictions",
}
