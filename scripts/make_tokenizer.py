"""Train the embedded model's tokenizer: a byte-level BPE of 512 tokens, fitted to the arithmetic problems.

Every byte is a token, so any text survives encoding and decoding unchanged; digits are never merged, because digit-wise
arithmetic is what a small model learns. Run it again only to change the vocabulary: a shipped model depends on it.
"""

import argparse
from itertools import chain
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from loop_rl.data.arithmetic import problems

SPECIAL = ["<pad>", "<bos>", "<eos>"]
# GPT-2's pieces, but a digit stands alone and without its leading space.
PIECES = r"'(?:s|t|re|ve|m|ll|d)|\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# The problems alone give some 445 tokens; words that other word problems use fill the rest.
COMMON = (
    " the of to in is it for was on that with as be this from each every total cost costs dollars per day days week"
    " weeks month hour hours minutes year years old much more than less half twice times money spend spent pay make"
    " makes sell them they he she his her all one two three what when so if then people will would work together number"
)


def train(count: int, seed: int, vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer of at most `vocabulary` ids, pad 0, bos 1, eos 2; it adds no token of its own accord."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (f"Question: {p['question']}\nAnswer:\n{p['answer']}" for p in problems(count, seed))
    tokenizer.train_from_iterator(chain(texts, [COMMON]), trainer=trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(__file__).parents[1] / "loop_rl" / "embedded",
        help="where it goes (default: the embedded model's folder, whose tokenizer it replaces)",
    )
    parser.add_argument("--count", type=int, default=20_000, help="problems that it is trained on (default: 20000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the problems (default: 0)")
    parser.add_argument("--vocabulary", type=int, default=512, help="tokens in the end (default: 512)")
    arguments = parser.parse_args()
    tokenizer = train(arguments.count, arguments.seed, arguments.vocabulary)
    tokenizer.save_pretrained(arguments.folder)
    print(f"{len(tokenizer)} tokens saved in {arguments.folder}")


if __name__ == "__main__":
    main()
