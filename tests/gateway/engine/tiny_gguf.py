"""A llama of a few thousand random weights, as llama.cpp reads it: `python tiny_gguf.py FILE SEED`.

Its tokens are single characters, and those that end a text or stand for raw bytes are never the likeliest: it says
printable nonsense for as long as it is asked to, and the same seed always says the same.
"""

import sys

import gguf
import numpy as np

WIDTH, LAYERS, HEADS, CONTEXT = 64, 2, 4, 512
SPECIAL = [b"<unk>", b"<s>", b"</s>"]
BYTES = [f"<0x{value:02X}>".encode() for value in range(256)]
CHARACTERS = ["\u2581".encode(), *(bytes([value]) for value in range(33, 127))]
CHAT = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant: "


def write(path: str, seed: int) -> None:
    out = gguf.GGUFWriter(path, "llama")
    _describe(out, seed)
    chance = np.random.default_rng(seed)

    def random(*shape: int) -> np.ndarray:
        return (0.05 * chance.standard_normal(shape)).astype(np.float32)

    vocabulary = len(SPECIAL) + len(BYTES) + len(CHARACTERS)
    head = random(vocabulary, WIDTH)
    head[: len(SPECIAL) + len(BYTES)] = 0.0
    out.add_tensor("token_embd.weight", random(vocabulary, WIDTH))
    out.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    out.add_tensor("output.weight", head)
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            out.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(WIDTH, np.float32))
        for square in ("attn_q", "attn_k", "attn_v", "attn_output"):
            out.add_tensor(f"blk.{layer}.{square}.weight", random(WIDTH, WIDTH))
        out.add_tensor(f"blk.{layer}.ffn_gate.weight", random(2 * WIDTH, WIDTH))
        out.add_tensor(f"blk.{layer}.ffn_up.weight", random(2 * WIDTH, WIDTH))
        out.add_tensor(f"blk.{layer}.ffn_down.weight", random(WIDTH, 2 * WIDTH))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _describe(out: gguf.GGUFWriter, seed: int) -> None:
    kind = gguf.TokenType
    tokens = SPECIAL + BYTES + CHARACTERS
    types = [kind.UNKNOWN, kind.CONTROL, kind.CONTROL, *[kind.BYTE] * len(BYTES), *[kind.NORMAL] * len(CHARACTERS)]
    out.add_name(f"random-{seed}")
    out.add_context_length(CONTEXT)
    out.add_embedding_length(WIDTH)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(2 * WIDTH)
    out.add_head_count(HEADS)
    out.add_head_count_kv(HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(WIDTH // HEADS)
    out.add_vocab_size(len(tokens))
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    out.add_tokenizer_model("llama")
    out.add_token_list(tokens)
    out.add_token_scores([0.0] * len(tokens))
    out.add_token_types(types)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_unk_token_id(0)
    out.add_add_bos_token(True)
    out.add_add_eos_token(False)
    out.add_chat_template(CHAT)


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]))
