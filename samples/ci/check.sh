#!/bin/sh
# Any other CI: a script whose exit code is that of the first command that fails.
set -eu
modelscope check samples/tiny_resnet.py:TinyResNet samples/star.png --checkpoint samples/tiny_resnet.safetensors --max-params 100k --output check.sarif --force
modelscope weights samples --scan --format sarif --output weights.sarif --force
