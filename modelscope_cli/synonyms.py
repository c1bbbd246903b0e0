"""Words that users of other tools type, and what they are called here. Standard library."""

import re
from collections.abc import Collection, Mapping


def _by_word(table: str) -> Mapping[str, tuple[str, ...]]:
    """Return what each word may mean, from a table of `meaning: word word; meaning: word`."""
    meanings: dict[str, tuple[str, ...]] = {}
    for line in re.split("[;\n] *", table.strip()):
        meant, _, words = line.partition(": ")
        for word in words.split():
            meanings[word] = (*meanings.get(word, ()), meant)
    return meanings


# Values, columns and commands, without punctuation. Of several meanings the first that is possible counts.
_WORDS = _by_word("""
mean: average avg mu; std: sd stddev stdev deviation standarddeviation sigma
min: minimum lowest; max: maximum highest
params: parameters nparams numparams; macs: multadds madds; type: class kind module layertype
output: outputsize outputshape; input: inputsize inputshape; kernel: kernelsize; zero: zeros sparsity
l2: l2norm euclidean; int64: int integer long
cross-entropy: ce celoss xent softmax categorical categoricalcrossentropy
bce: bcewithlogits bcewithlogitsloss binary binarycrossentropy sigmoid
mse: l2 l2loss mseloss regression squarederror; nll: nllloss logsoftmax; integrated-gradients: ig intgrad
integrated-gradients: lrp deeplift deepliftshap relevance epsilonlrp layerwiserelevancepropagation
gradcam: gradcamplusplus layercam xgradcam eigencam scorecam ablationcam cam guidedgradcam
saliency: gradient gradients vanilla vanillagradient backprop guidedbackprop smoothgrad deconvolution
input-x-gradient: inputxgrad gradxinput gradtimesinput
occlusion: rise lime shap kernelshap perturbation slidingwindow featureablation
adamw: adam radam nadam; momentum: sgdm sgdmomentum
nesterov: nag; float16: half fp16; bfloat16: bf16; float32: fp32 full single float; float64: double
summary: info inspect show print torchinfo torchsummary graph describe architecture layers flops gflops macs params
summary: parameters receptivefield memory profile profiler benchmark latency speed throughput timing depth shapes
stats: activations activation histogram histograms dead deadrelu deadrelus deadchannels distribution calibrate
featuremaps: visualize visualise features featuremap filters kernels maps hooks extract intermediate
predict: infer inference classify evaluate eval val validate validation test accuracy confusion confusionmatrix
predict: metrics metric topk top5 map precision recall detect segment
explain: gradcam cam saliency attribute attribution attributions heatmap heatmaps attention interpret occlusion lrp
explain: interpretability captum integratedgradients explanation explanations lime shap evidence
watch: debug monitor overfitting overfit loss training run record nan tensorboard wandb diagnose
grads: gradient gradients backward backprop vanishing exploding gradientflow gradflow gradnorm
train: fit learn finetune finetuning; lrfind: lr learningrate lrfinder learningratefinder lrrange lrrangetest
ablate: ablation knockout knockouts
check: lint verify ci audit health budget budgets leak duplicates dataset rules
diff: prune pruning sparsity compare comparison onnx export exported convert quantize quantization parity
report: html page dashboard notebook
weights: checkpoint checkpoints scan picklescan pickle statedict safetensors keys tensors
demo: example examples sample samples tutorial
classifier: fc head; head: fc classifier; fc: head classifier
features: backbone encoder; backbone: features encoder
""")

# Options: the first that the command has is meant. A word after a space is its value; `-` means that the value is
# positional.
OPTIONS = _by_word("""
--model: --arch --model-name --network --backbone
--checkpoint: --ckpt --ckpt-path --model-path --resume-from --load --state-dict --pth; --batch: --batch-size --bs
-: --image --images --img --input-image --source --data --dataset --data-dir --b
--size: --image-size --img-size --imgsz --input-size --resize
--target: --class --target-class --class-idx --category; --layer: --target-layer --layer-name --layers --module
--device cuda: --cuda --gpu; --device cpu: --cpu; --dtype float16: --fp16 --half; --lr: --learning-rate --lr0
--steps: --iterations --iters --max-steps --epochs --num-epochs --n-epochs --max-epochs
--out: --output-dir --out-dir --save-dir --project; --force: --overwrite --yes --exist-ok
--weights DEFAULT: --pretrained; --weights none: --no-pretrained; --workers: --num-workers; --top: --topk --top-k
--tolerance: --tol --atol --rtol --threshold; --columns: --col-names --cols
--format csv: --csv; --labels: --classes --class-names --names; --by-channel: --channels
--output: --junit --junit-xml --junitxml --xml
--select: --rule --rules --only; --from: --min-lr --start-lr; --to: --max-lr --end-lr
""")


def meaning(word: str, known: Collection[str]) -> str | None:
    """Return which of the known words a word of another tool means; None if it means none of them."""
    plain = re.sub(r"[\W_]", "", word.lower())
    return next((meant for meant in _WORDS.get(plain, ()) if meant in known), None)
