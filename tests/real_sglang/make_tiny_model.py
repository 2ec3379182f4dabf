"""Makes tiny random-weight Qwen2 checkpoints, good and broken ones, without downloading anything.

usage: make_tiny_model.py FOLDER

    base v2 v3   one architecture, three seeds; base is what the server starts with
    v2_bin       v2 as pytorch_model.bin
    sharded      several safetensors files and an index
    missing      v2 without one of its tensors
    extra        v2 with a tensor that the model does not know
    weightsonly  v2's tensors alone: no config.json, no tokenizer
    noweights    v2 without its tensors
    emptydir     nothing
    lostshard    sharded, with one of the files that its index names not there
    truncated truncated_bin zerolen   a file that ends early
    halfbad      sharded, with its last file ending early
    wrongshape   another hidden size under base's config.json
    lateshape    v2, with only its last tensor of another shape
"""

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

BIG = 0.2
"""Standard deviation of the weights: large enough that other seeds give other greedy text."""


def make_tokenizer():
    """A byte-level tokenizer of 500 tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        show_progress=False,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    corpus = ["the quick brown fox jumps over the lazy dog", "rollout weights sync publish version trainer engine"]
    tokenizer.train_from_iterator(corpus * 20, trainer)
    end = "<|endoftext|>"
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, pad_token=end, unk_token=end)


def make_model(folder, tokenizer, seed, hidden=64, **how):
    """Write a model of 2 layers with weights drawn from ``seed``."""
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        dtype="bfloat16",
    )
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, BIG)
    model.save_pretrained(folder, **how)
    tokenizer.save_pretrained(folder)


def copy(source, name):
    """A copy of a checkpoint folder beside it."""
    return Path(shutil.copytree(source, source.with_name(name)))


def truncate(file):
    """Cut off the last 40 % of a file."""
    with file.open("r+b") as opened:
        opened.truncate(int(file.stat().st_size * 0.6))


def change(folder, change_tensors):
    """Rewrite a folder's model.safetensors after ``change_tensors`` had its tensors in hand."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change_tensors(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def main(out):
    """Write all of them, from nothing."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    tokenizer = make_tokenizer()
    for seed, name in enumerate(("base", "v2", "v3"), start=1):
        make_model(out / name, tokenizer, seed)
    v2 = out / "v2"
    make_model(out / "sharded", tokenizer, 5, max_shard_size="120KB")

    v2_bin = copy(v2, "v2_bin")  # transformers 5 writes safetensors whatever it is told
    torch.save(load_file(v2_bin / "model.safetensors"), v2_bin / "pytorch_model.bin")
    (v2_bin / "model.safetensors").unlink()

    change(copy(v2, "missing"), lambda tensors: tensors.pop("model.layers.1.mlp.down_proj.weight"))
    change(copy(v2, "extra"), lambda tensors: tensors.update({"model.layers.1.mlp.bogus.weight": torch.zeros(4, 4)}))
    (out / "weightsonly").mkdir()
    shutil.copy(v2 / "model.safetensors", out / "weightsonly")
    (copy(v2, "noweights") / "model.safetensors").unlink()
    (out / "emptydir").mkdir()
    sorted(copy(out / "sharded", "lostshard").glob("*.safetensors"))[-1].unlink()

    truncate(copy(v2, "truncated") / "model.safetensors")
    truncate(copy(v2_bin, "truncated_bin") / "pytorch_model.bin")
    (copy(v2, "zerolen") / "model.safetensors").write_bytes(b"")
    truncate(sorted(copy(out / "sharded", "halfbad").glob("*.safetensors"))[-1])
    make_model(out / "wrongshape", tokenizer, 4, hidden=32)
    shutil.copy(out / "base" / "config.json", out / "wrongshape")
    change(
        copy(v2, "lateshape"),
        lambda tensors: tensors.update({"model.norm.weight": torch.ones(32, dtype=torch.bfloat16)}),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
