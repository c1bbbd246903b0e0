"""What is wrong with a file of weights."""

ROWS = """
weights model.keras
weights core.mlpackage
weights model.onnx
weights lost.pt
summary {TINY} -c lost.pt
predict dot.png {T} --labels lost.txt
weights many
summary {TINY} -c many
weights folder
weights empty.pt => weights tiny.pt
weights text.jpg => weights tiny.pt
weights page.pth => weights tiny.pt
weights pointer.pth
weights cut.safetensors => weights tiny.safetensors
weights big.pt => weights tiny.pt
weights lying.safetensors => weights tiny.safetensors
weights text2.safetensors => weights tiny.safetensors
weights escape.index.json
weights lost.index.json
weights broken.index.json
weights no_tensors.pt => weights tiny.pt
weights nested.pt --key modle
weights nested.pt --key epoch
weights tiny.safetensors --key model
weights pipe.safetensors
weights object.pt
weights lockd.pt
stats pipe.png {T}
weights tiny.safetensors --layer haed
weights tiny.safetensors --layer zzzzzz
# escaped, it is a pattern
weights tiny.safetensors --layer 're:[' ~> matches no tensor
weights tiny.safetensors --convert copy.pt
weights tiny.safetensors --convert tiny.safetensors
weights inside.pt --convert new.safetensors
weights sparse.pt --convert new.safetensors
weights --scan lost
"""


def forced_file_of_others(patch):
    def read(path, *given, **options):
        raise PermissionError(13, "Permission denied")

    patch.setattr("pathlib.Path.open", read)
    return "weights tiny.pt"


FORCED = [forced_file_of_others]
EXCUSED = {"checkpoints/file_type.py read_head: hint": "whoever calls it has looked into folders before"}
