"""What is wrong with images, tensors, noise, labels and the truth."""

from types import SimpleNamespace

from modelscope_cli.errors import CannotRunError

ROWS = """
stats https://example.org/dot.png {T} !> needs the network
stats {T} --batch 0
stats dot.png {T} --input-shape 1,3,9,9
stats dot.png {T} --size 0
stats dot.png {T} --size 1,2,3
stats dot.png {T} --size 999999,999999
stats dot.png {T} --mean 1,2
stats dot.png {T} --mean x
stats dot.png {T} --std 0
stats dot.png {T} --std 1e-320
stats {T} --input-shape 1,a
stats {T} --input-shape 1,9999999999999999999
stats {T} --input-shape 99999,99999,99999
stats {T} --input-shape flot32:1,3,16,16
stats {T} --input-shape q:1,3,16,16
stats {T} --input x
stats {T} --input x=1,a
stats {T} --input-shape 1,3,16,16 --batch 4
stats -m models.py:Text --input-shape int64:1,16 --batch 4
stats -m models.py:Flat --size 16
stats {T} --input-shape 999999,9999,9

# files
stats dott.png {T}
stats two/c.png {T}
stats zzzzzz.jpg {T}
stats '*.webp' {T}
stats folder {T}
stats classes {T}
stats notes.tar {T}
stats text.tar {T}
stats packed.tar.gz {T}
stats named.tar.gz {T} => stats shard.tar {T}
stats @lost.txt {T}
stats @zz {T}
stats @empty.txt {T} => stats @list.txt {T}
stats @folders.txt {T}
stats @wrong.txt {T} => stats @list.txt {T}
stats @elsewhere.txt {T} => stats @list.txt {T}
stats - {T}
featuremaps two/a.png two/b.png {T}
featuremaps two/a.png two/a.png two/a.png two/a.png two/a.png {T} => featuremaps two/a.png {T}
stats two {T} dot.png tall.png --input left=dot.png
stats {T} --mean 0.5
stats image.pt {T} --size 16
stats dot.png {T} --mean 0.5 --no-normalize
predict tall.png dot.png -m fasterrcnn_mobilenet_v3_large_320_fpn --weights none --size 16 --batch 2 !> detection takes seconds

# images that cannot be decoded
stats empty.jpg {T}
stats text.jpg {T}
stats cut.png {T}
stats bomb.png {T}

stats lying.tar {T} => stats dot.png {T}
stats fifos {T}
stats broken {T}
stats dot.png tall.png -m lraspp_mobilenet_v3_large --weights none --size 32 --batch 2

# tensors
stats pair.safetensors {T}
stats image.pt image.npy {T} => stats image.pt {T}
stats evil.pt {T}
stats cut.safetensors {T}
stats scalar.pt {T}
stats lost.pt {T}
stats folder.npy {T}
stats two.pt -m models.py:Two --batch 1

# by name
stats -m models.py:Two
stats dot.png -m models.py:Two
stats dot.png -m models.py:Two --input left=1,3,16,16
stats -m models.py:Two --input-shape 1,3,16,16
stats -m models.py:Two --input left=1,3,16,16
stats -m models.py:Two --input lft=1,3,16,16 --input right=1,3,16,16
stats dot.png -m models.py:Text
stats image.pt image.pt image.pt -m models.py:Two => stats pair.safetensors -m models.py:Two
stats -m models.py:Two --input left=image.pt --input left=image.pt --input right=1,3,16,16
stats -m models.py:Two --input left=pair.safetensors --input right=1,3,16,16 => stats -m models.py:Two --input left=image.pt --input right=1,3,16,16
stats -m models.py:Two --input left=2,3,16,16 --input right=1,3,16,16 --batch 1

# labels and the truth
predict dot.png {T} --labels lost.txt
predict dot.png {T} --labels dot.png => predict dot.png {T} --labels ten.txt
predict two {T} --truth lost.csv
predict two {T} --truth full/note
predict two {T} --truth dot.png => predict two {T} --truth truth.csv
predict two {T} --truth empty.txt => predict two {T} --truth truth.csv
predict two dot.png {T} --truth truth.csv => predict two {T} --truth truth.csv
predict dot.png -m models.py:Maps --truth masks_lost.csv
predict dot.png -m models.py:Maps --truth masks_cut.csv
predict dot.png -m models.py:Maps --truth masks_colour.csv => predict dot.png -m models.py:Maps --truth masks.csv

# what the model is made for
stats dot.png -m models.py:Five
stats dot.png -m raft_small --weights none !> optical flow takes seconds
stats dot.png dot.png -m raft_small --weights none --size 100 !> optical flow takes seconds
stats dot.png dot.png -m raft_small --weights none --batch 3 !> optical flow takes seconds
stats dot.png -m fasterrcnn_mobilenet_v3_large_320_fpn --weights none --size 100 !> detection takes seconds

# from Python
>>> ms.stats(net, ['lost.pt']) => ms.stats(net, ['image.pt'])
>>> ms.stats(net, 3) => ms.stats(net, x)
>>> ms.stats(net, iter([x])) => ms.stats(net, [x])
>>> ms.stats(net, {}) => ms.stats(net, {'x': x})
>>> ms.stats(net, {'x': 3}) => ms.stats(net, {'x': x})
>>> ms.stats(net, torch.utils.data.DataLoader([])) => ms.stats(net, torch.utils.data.DataLoader([x[0]]))
>>> ms.stats(net, torch.utils.data.DataLoader(['a'])) => ms.stats(net, torch.utils.data.DataLoader([x[0]]))
>>> ms.predict(net, ['two/a.png'], truth=[0, 1]) => ms.predict(net, ['two/a.png'], truth=[0])
>>> ms.predict(net, ['two/a.png'], truth=np.zeros((2, 2))) => ms.predict(net, ['two/a.png'], truth=[0])
>>> ms.predict(net, ['two/a.png'], truth=3) => ms.predict(net, ['two/a.png'], truth='truth.csv')
>>> ms.predict(net, ['two/a.png'], truth=[[0, 0, 1]]) => ms.predict(net, ['two/a.png'], truth=[[2]])
>>> ms.predict(net, ['two/a.png'], truth=[1.5]) => ms.predict(net, ['two/a.png'], truth=[1])
>>> ms.predict(net, ['two/a.png', 'again/a.png'], truth={'a.png': 1}) => ms.predict(net, ['two/a.png', 'again/a.png'], truth={'two/a.png': 1, 'again/a.png': 1})
"""


def forced_folder_of_others(patch):
    def scan(path):
        raise PermissionError(13, "Permission denied")

    patch.setattr("modelscope_cli.inputs.files.os.scandir", scan)
    return "stats two {T}"


def forced_image_of_others(patch):
    def read(*given, **options):
        raise PermissionError(13, "Permission denied")

    patch.setattr("PIL.Image.open", read)
    return "stats dot.png {T}"


def forced_too_much_noise(patch):
    def draw(*given, **options):
        raise MemoryError

    patch.setattr("torch.randn", draw)
    return "stats {T} !> where the memory suffices"


def forced_no_processes(patch):
    patch.setattr("modelscope_cli.inputs.decoding.sys", SimpleNamespace(platform="darwin"))
    return "predict dot.png {T} --workers 2"


def forced_image_that_is_a_pipe(patch):
    def read(*given, **options):
        raise CannotRunError("'dot.png' is a pipe, not a file", "ls -l dot.png")

    patch.setattr("PIL.Image.open", read)
    return "stats dot.png {T}"


FORCED = [
    forced_image_that_is_a_pipe,
    forced_folder_of_others,
    forced_image_of_others,
    forced_too_much_noise,
    forced_no_processes,
]
_TRANSFORMERS = "needs transformers, which is an extra"
EXCUSED = {
    "inputs/image.py _stream: f'tar -tf {shlex.quote(file.member.shard)}'": "needs a shard that is cut off while it is read",
    "inputs/preprocess.py _too_large: f'--size {short_side},{short_side}'": "needs an image of gigabytes once resized",
    "inputs/preprocess.py __call__: 'give a tensor file (.pt, .npy, .safetensors) with what the model takes'": _TRANSFORMERS,
    "inputs/preprocess.py check_processor: f'python -m json.tool {shlex.quote(file)}'": _TRANSFORMERS,
}
