"""The lines of the net: every command and every option, on three small models and one watched script.

`A && B` runs A first, in the same folder. What is kept of B is its document and its page; with `#t` also its
columns, with `#a` all that it prints instead. `~`: what it computes differs too much between processors, so that only
keys, words and counts are compared.
"""

TINY = "demo/tiny_resnet.py:TinyResNet -c demo/tiny_resnet.safetensors"
SICK = "demo/tiny_resnet.py:TinyResNet -c demo/sick.safetensors"
BARE = "demo/tiny_resnet.py:TinyResNet -w none"
R18 = "resnet18 -w none --size 64"
VIT = "tiny_vit.py:tiny_vit -w none --size 32"
STAR, HARB = "demo/star.png", "demo/harbour.jpg"

LOADED = "demo/tiny_resnet.py:TinyResNet -c wrapped.pt --key state_dict_ema --strict --num-classes 10 --model-arg width=16 -d cpu --seed 3"
PREPARED = "--mean 0.5,0.4,0.3 --std 0.2,0.3,0.2 --size 32"
FOLDERS = "demo/shapes/star demo/shapes/ring --labels circle,square,triangle,star,ring,cross,stripes,checkerboard,dots,waves"
TWO = f"two_inputs.py:TwoInputs -w none --input image={STAR} --input side=1,5"

LINES = {
    # summary
    "summary_tiny": f"summary {TINY} --depth 2 --seed 1",
    "summary_tiny_columns": "summary demo/tiny_resnet.py:TinyResNet --columns name,type,params,macs --sort params --top 5",
    "summary_tiny_options": "summary demo/tiny_resnet.py:TinyResNet --freeze conv --model-arg width=8 --num-classes 3 "
    "--batch 2 -l conv --exclude block3 --all",
    "summary_tiny_measured": f"summary {TINY} {STAR} {PREPARED} --workers 0 --columns name,field -d cpu --dtype float32 -q",
    "summary_tiny_train": "summary demo/tiny_resnet.py:TinyResNet --train --optimizer momentum --amp bfloat16 --batch 3 "
    "--depth 2 #jt",
    # What kernels take for a moment depends on the processor, and is not measured where values decide.
    "summary_by_values": "summary by_values.py:ByValues --input-shape 2,3,16,16 --train --fit 500kB #jt",
    "summary_r18": "summary resnet18 -w none",
    "summary_r18_kept": "summary resnet18 && summary resnet18 #j",
    "summary_vit": "summary tiny_vit.py:tiny_vit -w none --input-shape 1,3,32,32",
    "summary_inputs": f"summary two_inputs.py:TwoInputs --input image={STAR} --input side=1,5 --strict #jt",
    "summary_markdown": "summary -m demo/tiny_resnet.py:TinyResNet -f markdown #a",
    "summary_table": "summary demo/tiny_resnet.py:TinyResNet --format table #a",
    "summary_r34_table": "summary resnet34 --depth 2 --format table #a",
    "summary_csv": "summary -m demo/tiny_resnet.py:TinyResNet --format csv #a",
    # stats
    "stats_tiny": f"stats {TINY} {STAR}",
    "stats_tiny_sick": f"stats {SICK} {STAR} {HARB} --batch 1 --workers 0",
    "stats_tiny_train": f"stats {TINY} demo/shapes/star demo/shapes/ring --mode train -b 2",
    "stats_tiny_exact": f"stats {TINY} demo/shapes/star --columns name,mean,std,p50,p01,p99.9 -b 1",
    "stats_tiny_plot": f"stats {TINY} {STAR} -l block1.conv1 --plot stats.png",
    "stats_tiny_hook": f"stats {TINY} {STAR} --hook 'zero[3,7]@conv' --hook scale=2@block1.conv1 "
    "--hook call=own.py:halve@block2.conv1",
    "stats_tiny_blocks": f"stats {TINY} demo/shapes/star --batch 1 --out kept && "
    f"stats {TINY} demo/shapes/star --batch 1 --out kept --resume",
    "stats_noise": f"stats {BARE} --input-shape 2,3,32,32 --seed 4 --exclude bn",
    "stats_prepared": f"stats {TINY} {STAR} --size 40,48 --mean 0.5,0.5,0.4 --std 0.2,0.2,0.3 -v -l relu",
    "stats_raw": f"stats {TINY} {STAR} --size 64 --mean 0 --std 1 -l relu -o out.csv --sort mean:asc --top 3 #a",
    "stats_table": f"stats {TINY} {STAR} -q --format table --columns name,type,shape,mean,std,zero,dead #a",
    "stats_r18": f"stats {R18} {HARB}",
    "stats_r18_bfloat16": f"stats {R18} {STAR} --dtype bfloat16 -l layer1 #jt",
    "stats_vit": f"stats {VIT} {HARB}",
    "stats_inputs": f"stats two_inputs.py:TwoInputs -w none --input image={STAR} --input side=1,5 --model-arg width=6 #jt",
    # featuremaps
    "featuremaps_tiny": f"featuremaps {TINY} {STAR} -l conv --max-channels 2 --out maps",
    "featuremaps_options": f"featuremaps {TINY} {STAR} -l block1.conv1 --channels 3,7,10..12 --scale layer "
    "--overlay --hook scale=1@conv --exclude bn --save-tensors maps.safetensors",
    "featuremaps_few": f"featuremaps {SICK} {STAR} -l block3 --max-channels 4",
    "featuremaps_filters": f"featuremaps {TINY} --filters --max-channels 2 --out maps",
    "featuremaps_r18": f"featuremaps {R18} {STAR} --max-channels 2 #jt",
    "featuremaps_vit": f"featuremaps {VIT} {STAR} --attention --max-channels 2 --out maps",
    "featuremaps_noise": f"featuremaps {BARE} --input-shape 1,3,32,32 --max-channels 2 -l conv #jt",
    # predict
    "predict_tiny": f"predict {TINY} {STAR} --top 2",
    "predict_tiny_options": f"predict {TINY} {STAR} {HARB} --output-kind classes --labels labels.txt --scores sigmoid --threshold 0.2 "
    "--hook scale=1@conv --batch 2 --workers 0",
    "predict_truth": f"predict {TINY} demo/shapes --truth folders --batch 8",
    "predict_truth_classes": f"predict {TINY} demo/shapes --truth folders --table classes -b 8",
    "predict_truth_confusions": f"predict {SICK} demo/shapes --truth folders --table confusions -b 8 #jt",
    "predict_truth_calibration": f"predict {TINY} demo/shapes --truth folders --table calibration -b 8 #t",
    "predict_truth_worst": f"predict {TINY} demo/shapes --truth folders --table worst -b 8 #t",
    "predict_truth_file": f"predict {TINY} {STAR} {HARB} --truth truth.csv",
    "predict_doctor": f"predict --doctor {TINY} demo/shapes/star demo/shapes/ring -b 4",
    "predict_doctor_alone": f"predict --doctor {TINY} {STAR} #jt",
    "predict_blocks": f"predict {TINY} demo/shapes/star -b 1 --out kept && predict {TINY} demo/shapes/star -b 1 --out kept --resume #jt",
    "predict_r18": f"predict {R18} {STAR} {HARB}",
    "predict_vit": f"predict {VIT} {STAR} --seed 2 #jt",
    "predict_key": f"weights demo/tiny_resnet.safetensors --convert w.safetensors && predict demo/tiny_resnet.py:TinyResNet "
    f"-c w.safetensors --no-strict {STAR} #jt",
    # explain
    "explain_tiny": f"explain {TINY} {STAR} --size 48 --out maps",
    "explain_required": f"explain {TINY} {STAR} --size 32 --method hirescam,saliency --receipt quick --batch 64 "
    "--require passed --no-save --target class-3 -l block3 --labels labels.txt #jt",
    "explain_all": f"explain {TINY} {STAR} --size 32 --method all --receipt none --hook scale=1@conv "
    "--save-tensors maps.safetensors",
    "explain_folder": f"explain {TINY} demo/shapes/star --size 32 --method hirescam --receipt none -b 2 --workers 0 --out maps",
    "explain_r18": f"explain {R18} {STAR} --method gradcam --receipt none --no-save #jt",
    "explain_vit": f"explain {VIT} {STAR} --method gradcam,input-x-gradient --out maps",
    # watch
    "watch_tiny": "watch --steps 3 --out run demo/train.py",
    "watch_short": "watch --out run short.py",
    "watch_sick": "watch --out run short.py sick",
    "watch_layers": "watch -l '3' --every 2 --out run --fail-on warning --strict short.py #jt",
    "watch_abort": "watch --abort-on nan --fail-on error --out run short.py sick #jt",
    "watch_report": "watch --out run short.py && watch --report run #jt",
    "watch_tries": "watch --try-fixes --fix-time 5m --fix-writes . --out run short.py",
    "watch_module": "watch --out run -m short sick #j",
    # grads
    "grads_tiny": f"grads {TINY} {STAR} --out run",
    "grads_tiny_options": f"grads {TINY} {STAR} {STAR} --mode train --clip 1 --train-only head "
    "--hook grad:scale=1@head --no-save -t star --batch 2",
    "grads_activations": f"grads {TINY} {STAR} --table activations --hook grad:clamp=-0.1,0.1@conv -l conv --no-save",
    "grads_batch_norm": f"grads {TINY} {STAR} --mode train --freeze conv --clip-norm 1 --no-save",
    "grads_loss": f"grads {TINY} {STAR} --loss mse --no-save #jt",
    "grads_own_loss": f"grads {TINY} {STAR} --loss own.py:loss --no-save #jt",
    "grads_r18": f"grads {R18} {STAR} --no-save",
    "grads_vit": f"grads {VIT} {STAR} --no-save",
    "grads_folders": f"grads {TINY} {FOLDERS} --size 96 --batch 3 --no-save #jt",
    "grads_noise": f"grads {BARE} --input-shape 2,3,32,32 --seed 3 --exclude bn --no-save #jt",
    # train
    "train_tiny": f"train {BARE} --steps 3 --pictures 40 --size 16 --batch 4 --out run",
    "train_options": f"train {BARE} --steps 4 --pictures 40 --size 16 --batch 4 --optimizer adamw --lr 0.01 --schedule one-cycle "
    "--clip-norm 1 --freeze conv --every 2 --fail-on error --seed 3 #~",
    "train_loaders": f"train {BARE} --loaders own.py:loaders --steps 2 --train-only head #jt",
    "train_folder": f"train {TINY} demo/shapes --steps 2 --size 16 --batch 4 --schedule cosine #jt",
    "train_vit": f"train {VIT} --steps 2 --pictures 20 --batch 4 #jt",
    # lrfind
    "lrfind_tiny": f"lrfind {BARE} --steps 8 --pictures 40 --size 16 --batch 4 --out run",
    "lrfind_options": f"lrfind {BARE} --steps 5 --pictures 40 --size 16 --batch 4 --from 1e-4 --to 1 "
    "--optimizer sgd",
    "lrfind_loaders": f"lrfind {BARE} --loaders own.py:loaders --steps 4 --train-only head #jt",
    # ablate
    "ablate_tiny": f"ablate {TINY} {STAR} --size 48 --out run",
    "ablate_channels": f"ablate {TINY} {STAR} --size 48 -l block3.conv2 --by-channel --no-save --hook scale=2@block1.conv1 --top 5",
    "ablate_options": f"ablate {TINY} {STAR} {HARB} --size 48 --method shuffle -t star -b 2 --exclude bn --no-save --seed 5 --sort kl:asc",
    "ablate_folders": f"ablate {TINY} {FOLDERS} --size 96 -l 'block3*' --no-save",
    "ablate_r18": f"ablate {R18} {STAR} -l layer1 --method mean --no-save #jt",
    "ablate_vit": f"ablate {VIT} {STAR} --no-save #jt",
    # check, rules
    "check_tiny": f"check {TINY} {STAR}",
    "check_sick": f"check {SICK} {STAR} --fail-on warning",
    "check_noise": f"check {BARE} --input-shape 2,3,32,32 --max-params 1000 --max-macs 1M --max-memory 1MB --max-train-memory 1MB --expect-output 1,12 "
    "--select MS1,MS4 --set MS102=5",
    "check_ignore": f"check {SICK} {STAR} --ignore MS2 --mode train #jt",
    "check_github": f"check {SICK} {STAR} --format github #a",
    "check_junit": f"check {SICK} {STAR} --format junit #a",
    "check_baseline": f"check {SICK} {STAR} --baseline base.json --update-baseline && check {SICK} {STAR} --baseline base.json #jt",
    "check_out": f"check {TINY} demo/shapes/star -b 1 --out kept --workers 0 #jt",
    "check_accuracy": f"check {TINY} {FOLDERS} --size 96 --select MS6 --min-accuracy 0.99",
    "check_data": "check demo/shapes",
    "check_against": "check demo/shapes --against demo/shapes/star --select MS8 --fail-on warning",
    "check_r18": "check resnet18 -w none --input-shape 2,3,64,64 #jt",
    "check_vit": f"check {VIT} {STAR} #jt",
    "rules": "rules #jt",
    "rules_some": "check --list --select MS2,MS3 --columns code,name,threshold,source --format markdown #a",
    "rules_one": "rules MS205 #jt",
    "rules_training": "rules MS75 #jt",
    # diff
    "diff_files": "diff demo/tiny_resnet.safetensors demo/sick.safetensors",
    "diff_run": f"diff {TINY} {STAR} --tolerance 0 --b-dtype bfloat16",
    "diff_mode": f"diff {TINY} {STAR} --b-mode train --mode eval -l 'block*' --exclude bn --batch 1 --workers 0",
    "diff_two": f"diff demo/tiny_resnet.py:TinyResNet {STAR} -c demo/tiny_resnet.safetensors --b-checkpoint demo/sick.safetensors",
    "diff_seed": "diff resnet18 -w none --b-weights none --b-seed 1 --input-shape 1,3,64,64 --b-device cpu",
    "diff_models": f"diff resnet18 resnet34 -w none {STAR} --size 32 -l layer1 #jt",
    "diff_results": f"stats {TINY} {STAR} --out a && stats {SICK} {STAR} --out b && diff a b --html page.html",
    # report
    "diff_watch": "watch --out fine short.py && watch --out run short.py sick && diff run fine --html page.html",
    "report_folder": f"stats {TINY} {STAR} --out a && predict {TINY} {STAR} --truth truth.csv --out b && report a --force #jt",
    "report_key": f"report {LOADED} {STAR} {PREPARED} --dtype float32 --workers 0 --labels labels.txt --out page #jt",
    "report_inputs": f"report {TWO} --mean 0 --std 1 --html page.html #jt",
    "report_noise": f"report {BARE} --input-shape 3,32,32 --batch 2 --html page.html #jt",
    # weights, models
    "weights": "weights demo/tiny_resnet.safetensors",
    "weights_stats": "weights demo/sick.safetensors --stats --sort std --top 7",
    "weights_depth": "weights demo/tiny_resnet.safetensors --depth 2 -l block1",
    "weights_convert": "weights demo/tiny_resnet.safetensors --convert w.safetensors -l conv #jt",
    "weights_scan": "weights demo --scan --fail-on unknown",
    "weights_pickle": "weights pickled.pt --key model #jt",
    "weights_dangerous": "weights dangerous.pt --fail-on dangerous",
    "models": "models resnet #jt",
    "models_columns": "summary --list 'vit_*' --columns name,params,gmacs #jt",
    "demo": "demo there #a",
    "schema_option": "schema stats -q #a",
    # how a model is loaded and its images are prepared, in every command
    "summary_key": f"summary {LOADED} --columns name,field --input-shape 1,3,32,32 #t",
    "stats_key": f"stats {LOADED} {STAR} {PREPARED} #jt",
    "featuremaps_key": f"featuremaps {LOADED} {STAR} {PREPARED} --dtype bfloat16 -l conv --max-channels 2 #jt",
    "featuremaps_inputs": f"featuremaps {TWO} --mean 0 --std 1 --max-channels 2 --batch 1 --workers 0 #jt",
    "predict_key_ema": f"predict {LOADED} {STAR} {PREPARED} --dtype bfloat16 #jt",
    "predict_inputs": f"predict {TWO} --mean 0 --std 1 --model-arg width=6 #jt",
    "explain_key": f"explain {LOADED} {STAR} {PREPARED} --dtype float32 --output-kind classes --receipt none --method saliency --no-save #jt",
    "explain_resume": f"explain {TINY} demo/shapes/star --size 32 --method hirescam --receipt none --out maps && "
    f"explain {TINY} demo/shapes/star --size 32 --method hirescam --receipt none --out maps --resume #jt",
    "explain_raw": f"explain {TINY} --input x={STAR} --mean 0 --std 1 --receipt none --method saliency --no-save #jt",
    "explain_noise": f"explain {TINY} --input-shape 1,3,32,32 --receipt none --method hirescam --no-save #jt",
    "grads_key": f"grads {LOADED} {STAR} {PREPARED} --dtype float32 --output-kind classes --no-save --workers 0 #jt",
    "grads_inputs": f"grads {TWO} --mean 0 --std 1 --no-save #jt",
    "train_key": "train demo/tiny_resnet.py:TinyResNet -c wrapped.pt --key state_dict_ema --strict --model-arg width=16 -d cpu "
    "--steps 2 --pictures 20 --size 16 --batch 4 #t",
    "lrfind_key": f"lrfind {LOADED.replace(' --num-classes 10', '')} --steps 3 --pictures 40 --size 16 --batch 4 "
    "--freeze conv #jt",
    "ablate_key": f"ablate {LOADED} {STAR} {PREPARED} --dtype float32 --output-kind classes --no-save -l 'block*' --workers 0 #jt",
    "ablate_inputs": f"ablate {TWO} --mean 0 --std 1 --no-save #jt",
    "ablate_noise": f"ablate {TINY} --input-shape 1,3,32,32 --no-save --seed 1 #t",
    "check_key": f"check {LOADED} {STAR} {PREPARED} --dtype float32 --output-kind classes #jt",
    "check_inputs": f"check {TWO} --mean 0 --std 1 #jt",
    "diff_key": f"diff {LOADED} {STAR} {PREPARED} --dtype float32 --b-checkpoint wrapped.pt --b-key state_dict #jt",
    "diff_inputs": f"diff {TWO} --mean 0 --std 1 --b-seed 1 --b-weights none #jt",
}

# Lines whose record is also looked at in Python: its rows, its HTML, its figure.
IN_PYTHON = {
    "ablate_tiny", "check_tiny", "check_data", "diff_files", "diff_run",
    "explain_tiny", "featuremaps_tiny", "grads_tiny_options", "lrfind_tiny",
    "models", "predict_tiny", "predict_truth", "predict_doctor", "report_folder",
    "rules", "stats_tiny", "stats_tiny_blocks", "train_tiny",
    "watch_short", "weights", "weights_scan",
}  # fmt: skip

# Lines of which the exit code is kept; refusals whose message `tests/cli` or `tests/api` holds are not repeated here.
WRONG = [
    "",
    "nonsense",
    "--nonsense",
    "summary --nonsense",
    "stats --layer",
    "stats resnet18 --dept 2",
    "summary resnet18 --depth 0",
    "summary resnet18 --depth two",
    "summary demo/tiny_resnet.py",
    "summary resnet18 --top 0",
    "summary resnet18 --input-shape 1,3,8",
    "summary resnet18 --device nonsense",
    "summary resnet18 --dtype int8",
    "summary resnet18 --seed -1",
    "summary resnet18 --model-arg nonsense=3",
    "summary resnet18 --freeze nonsense -w none",
    f"stats {BARE} {STAR} --hook zero",
    f"stats {BARE} {STAR} --mode nonsense",
    f"stats {BARE} {STAR} --std 0,1,1",
    f"stats {BARE} {STAR} --mean 0 --std 1 --mean 0.5,0.5,0.5",
    f"stats {BARE} {STAR} --workers -1",
    f"stats {BARE} short.py",
    f"featuremaps {BARE} --filters --overlay",
    f"featuremaps {BARE} --filters -l relu",
    f"featuremaps {BARE} {STAR} --save-tensors x.bin",
    f"predict {BARE} {STAR} --truth missing.csv",
    f"predict {BARE}",
    f"explain {BARE} {STAR} --target nonsense",
    f"explain {BARE} {STAR} --size 32 --method hirescam --receipt none --no-save --require passed",
    f"explain {BARE} {STAR} --no-save --out x",
    f"explain {BARE} {STAR} -l nonsense",
    "watch --steps 0 short.py",
    "watch --nonsense short.py",
    "watch --fail-on error --out run short.py sick",
    "watch --abort-on nan --out run2 short.py sick",
    f"grads {BARE} {STAR} --no-save --out x",
    f"grads {BARE} {STAR} --freeze conv --train-only conv",
    f"train {BARE} --steps 0",
    f"train {BARE} --pictures 1",
    f"train {BARE} --size 2",
    f"train {BARE} --schedule nonsense",
    f"train {BARE} --optimizer nonsense",
    f"train {BARE} --steps 2 --pictures 40 --size 16 --batch 4 --lr 1e30 --fail-on error",
    f"ablate {BARE} {STAR} -l nonsense",
    "check",
    "check demo/shapes --against missing",
    f"check {BARE} {STAR} --max-params 10 --select MS4",
    f"check {SICK} {STAR}",
    "check demo/shapes --max-params 3",
    "diff demo/sick.safetensors",
    "diff demo/sick.safetensors demo/sick.safetensors",
    "diff demo/tiny_resnet.safetensors demo/sick.safetensors",
    f"diff {BARE} {STAR} --b-mode nonsense",
    "report",
    "report demo",
    "weights short.py",
    "weights dangerous.pt",
    "weights dangerous.pt --fail-on never",
    "weights demo/sick.safetensors --depth 0",
    "weights demo --scan --stats",
    "schema",
    "schema nonsense",
    "demo demo",
    "summary resnet18 resnet18 resnet18",
    "stats demo/star.png demo/star.png demo/star.png -w none -m resnet18 -m resnet34 -l nonsense",
    "summary 'torch.nn:Linear' --model-arg in_features=2",
    "summary nonsense:Model",
    "summary resnet18 --strict --no-strict -c missing.pt",
    "summary -c demo/tiny_resnet.safetensors",
    "summary --help",
    "--version",
    "summary -h",
    "help",
    "help model",
    "help layers",
    "help hooks",
    "help input",
    "help output",
    "help stats",
]
