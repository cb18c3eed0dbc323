#!/usr/bin/env bash
# The demo: demo.sh BIN_DIR. A convolution net learns digits in FP16; at step 100 its gradients begin to vanish.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=${1:-target/release}
run=runs/demo
rm -rf "$run"

echo "A convolution net learns digits in FP16. At step 100 a fault is planted: see when the doctor finds it."
echo "Every step is scanned here, whatever it costs; attached with its defaults the doctor takes about 2 % of the time."
[[ -t 1 ]] && echo "Press q to leave the dashboard."
"$bin/ampdoctor" watch --run "$run" -- "$bin/ampdoctor-trainer" \
    --model conv --precision fp16 --steps 300 --every 1 --fault underflow@100

"$bin/ampdoctor" report "$run" --format json >"$run/report.json"
echo
echo "What was found:"
# 1 is the verdict "findings", which is what the demo is for.
"$bin/ampdoctor" check "$run" && status=0 || status=$?
echo
echo "The report:    $run/report.json"
echo "Replay it:     $bin/ampdoctor watch $run"
[[ $status -eq 1 ]]
