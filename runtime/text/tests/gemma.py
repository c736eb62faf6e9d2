"""Makes gemma.json: a small vocabulary of Gemma 4's kind, and token ids by llama.cpp.

    pip install llama-cpp-python==0.3.36 gguf==0.19.0
    python gemma.py
"""

import collections
import json
import pathlib
import random
import re
import tempfile

import gguf
from llama_cpp import Llama

# What pairs are counted in, and what is encoded.
TEXTS = [
"Hello, world!", "The quick brown fox jumps over the lazy dog.", "", " ", " leading", "trailing ", "  two  spaces  ",
"\n", "\n\n", "\n\n\n\n\n", "\t\tindent\n\tone", " \n \n  \n   x", "a\n\nb\n\n\n\nc", "\r\n windows\r\n lines\r\n",
"1234567890", "3.14159", "x" + " " * 37 + "y", "I'm you're he'll she'd we've it's",
"fn main() {\n    let x: Vec<u32> = (0..10).map(|i| i * 2).collect();\n    println!(\"{x:?}\");\n}\n",
"def f(a, b=None):\n\treturn [i for i in range(10) if i % 2 == 0]\n", "# A heading\n\n## Another\n// a comment\n#",
"你好，世界！", "日本語のテキスト", "Привет, мир!", "café naïve Zürich", "e\u0301 decomposed", "😀 👨‍👩‍👧 🇩🇪",
"\u2581 is a space to it", "a\u2581b", "<0x0A> is text", "\x00\x01 control \x7f", "\U0001F9FF\U0010FFFD",
"<|turn>user\nHi<turn|>\n<|turn>model\n", "<bos>", "a<turn|>b", "<|turn>", "<|turn", "<|channel>thought\n<channel|>x",
" <turn|> ", "the then there the other", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "\n<turn|>\n", "<turn|><turn|>\n\n",
]
CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"]
DEFINED = ["<|channel>", "<channel|>"]
# Characters that are no tokens: their bytes are.
MISSING = set("世界😀é\u0301\x00\x01\x7f🧿\U0010FFFD")
MERGES = 260
ALPHABET = list("abthe Then019 .,#\n\n\t é界😀<|>\u2581") + ["<turn|>", "<|channel>", " the", "\n\n\n"]
RANDOM = random.Random(7)


def learn():
    """Characters, then what pairs make: the commonest pair that is left, again and again."""
    plain = [re.sub("|".join(map(re.escape, CONTROL + DEFINED)), "\n", text) for text in TEXTS]
    runs = [run for text in plain for run in re.findall(r"[^\n]+|\n+", text.replace(" ", "\u2581"))]
    words = [[c for c in run] for run in runs + ["\u2581" * 8, "\n" * 8]]
    characters = sorted({c for word in words for c in word} - MISSING)
    tokens, merges = list(characters), []
    while len(merges) < MERGES:
        pairs = collections.Counter()
        for word in words:
            pairs.update((a, b) for a, b in zip(word, word[1:]) if not (set(a + b) & MISSING))
        pair = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(pair)
        if "".join(pair) not in tokens:
            tokens.append("".join(pair))
        for word in words:
            at = 0
            while at + 1 < len(word):
                if (word[at], word[at + 1]) == pair:
                    word[at : at + 2] = ["".join(pair)]
                at += 1
    return tokens, [" ".join(pair) for pair in merges]


tokens, merges = learn()
named = CONTROL + DEFINED + [f"<0x{byte:02X}>" for byte in range(256)] + tokens
types = [3] * len(CONTROL) + [4] * len(DEFINED) + [6] * 256 + [1] * len(tokens)
with tempfile.TemporaryDirectory() as directory:
    path = pathlib.Path(directory) / "vocabulary.gguf"
    writer = gguf.GGUFWriter(path, "gemma4")
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(named)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    model = Llama(model_path=str(path), vocab_only=True, verbose=False)
    texts = TEXTS + ["".join(RANDOM.choice(ALPHABET) for _ in range(RANDOM.randint(1, 30))) for _ in range(80)]
    rows = []
    for text in texts:
        row = {"text": text, "ids": model.tokenize(text.encode(), add_bos=False, special=True)}
        plain = model.tokenize(text.encode(), add_bos=False, special=False)
        if plain != row["ids"]:
            row["plain"] = plain
        rows.append(row)

made = {"made by": "gemma.py with llama-cpp-python 0.3.36", "tokens": named, "types": types, "merges": merges}
lines = [f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}" for key, value in made.items()]
lines.append('"rows":[\n' + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]")
(pathlib.Path(__file__).parent / "gemma.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
