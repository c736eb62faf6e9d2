"""Makes golden.json: token ids by llama.cpp on the SmolLM2 vocabulary.

    pip install llama-cpp-python==0.3.36
    python golden.py SmolLM2-135M-Instruct.Q4_1.gguf
"""

import json
import pathlib
import random
import struct
import sys
import tempfile

from llama_cpp import Llama

TEXTS = [
"Hello, world!","The quick brown fox jumps over the lazy dog.","",
" "," leading","trailing ","  two  spaces  inside  ","\n","\n\n\n","\t\tindent\n\tone","\r\n windows\r\n lines\r\n","a\u00a0b\u2003c\u3000d",
"         nine", "x"+" "*37+"y", " \n \n  \n   x", "mixed \t \n \t end   ",
"1234567890","3.14159265358979","v1.2.3-rc4","2026-11-21T05:12:23Z","١٢٣ ४५६ ⅷ ½ ² 四","a1b2c3","00000000000000000000",
"I'm you're he'll she'd we've it's don't 'tis I'M YOU'RE","rock'n'roll 's't're",
"fn main() {\n    let x: Vec<u32> = (0..10).map(|i| i * 2).collect();\n    println!(\"{x:?}\");\n}\n",
"def f(a, b=None, *args, **kw):\n\treturn [i for i in range(10) if i % 2 == 0]\n\n\nclass A:\n    pass\n",
"<html><body class=\"a b\">&amp;&lt;<!-- x --></body></html>","SELECT * FROM t WHERE a<>'b' AND c>=10;","{\"a\": [1, 2.5e-10, null, true], \"b\": {}}",
"!@#$%^&*()_+-=[]{};':\",./<>?`~\\|","....!!!???---===___","https://example.com/a/b?c=d&e=%20f#g","C:\\Users\\me\\file.txt",
"你好，世界！今天天气很好。","日本語のテキスト、カタカナとひらがな。","한국어 문장입니다.","Привет, мир! Ёлка.","Ελληνικά κείμενο","שלום עולם","مرحبا بالعالم","नमस्ते दुनिया","ไทย ภาษา","Tiếng Việt có dấu",
"café naïve Zürich Ærøskøbing","e\u0301 u\u0308 decomposed","ﬁ ligature ™ © ® № ℃",
"😀😃😄","👨‍👩‍👧‍👦 family","👍🏽 skin","🇩🇪🇫🇷 flags","♥️ ❤ ☃ \u200b zero \u200d width \ufeff bom","\U0001F9FF\U0010FFFD\ue000",
"\x00\x01\x02 control \x7f \x1b[31m","null\x00byte",
"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n","<|endoftext|>","<|endoftext|><|endoftext|> x <|im_end|>","a<|im_start|>b","<|im_start|><|im_start","|im_end|>","<repo_name>x<file_sep>y<filename>z<gh_stars>5<issue_start><empty_output>"," <|im_end|> ","<|IM_END|>","<reponame>","<jupyter_code>print(1)<jupyter_output>1",
"supercalifragilisticexpialidocious","antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis","aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","ABCdefGHIjklMNO","camelCaseIdentifier snake_case_identifier SCREAMING_CASE kebab-case-id",
"\\frac{\\partial f}{\\partial x} = \\sum_{i=0}^{n} \\alpha_i x^i","Ünïcödé wïth  spaces\n\nand\n\n\nlines","The year 1984, $12,345.67 and 50%.","1️⃣2️⃣3️⃣","x²+y³=z⁴","a\u0300\u0301\u0302b","\u1100\u1161\u11a8",
]
ALPHABET = list("abcXYZ019 _-.,'\"\n\t  éß漢字かな😀🏽\u200d\u0301١½<|>") + ["<|im_end|>", "'s", " the", "\r\n"]
RANDOM = random.Random(5)
for _ in range(60):
    TEXTS.append("".join(RANDOM.choice(ALPHABET) for _ in range(RANDOM.randint(1, 40))))

# Rows kept for each further pre-tokenizer: those it changes say something about it.
OTHERS, MOST = ["gpt-2", "llama-bpe", "qwen2", "default", "pixtral", "tekken", "minimax-m2"], 45
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def skip(data, kind, at):
    """Where a metadata value ends."""
    if kind == 8:
        return at + 8 + struct.unpack_from("<Q", data, at)[0]
    if kind == 9:
        kind, count = struct.unpack_from("<IQ", data, at)
        at += 12
        for _ in range(count):
            at = skip(data, kind, at)
        return at
    return at + SIZES[kind]


def with_pre(data, pre):
    """The metadata of a GGUF file without its tensors, under another pre-tokenizer's name."""
    count = struct.unpack_from("<Q", data, 16)[0]
    at, out = 24, b"GGUF" + struct.pack("<IQQ", 3, 0, count)
    for _ in range(count):
        start, length = at, struct.unpack_from("<Q", data, at)[0]
        key = data[at + 8 : at + 8 + length]
        at += 8 + length
        kind = struct.unpack_from("<I", data, at)[0]
        at = skip(data, kind, at + 4)
        if key == b"tokenizer.ggml.pre":
            name = pre.encode()
            out += struct.pack("<Q", length) + key + struct.pack("<IQ", 8, len(name)) + name
        else:
            out += data[start:at]
    return out


def encode(path):
    model = Llama(model_path=str(path), vocab_only=True, verbose=False)
    rows = []
    for text in TEXTS:
        row = {"text": text, "ids": model.tokenize(text.encode(), add_bos=False, special=True)}
        plain = model.tokenize(text.encode(), add_bos=False, special=False)
        if plain != row["ids"]:
            row["plain"] = plain
        rows.append(row)
    return rows


weights = pathlib.Path(sys.argv[1])
goldens = {"smollm": encode(weights)}
with tempfile.TemporaryDirectory() as directory:
    for pre in OTHERS:
        path = pathlib.Path(directory) / "vocabulary.gguf"
        path.write_bytes(with_pre(weights.read_bytes(), pre))
        changed = [(a, b) for a, b in zip(encode(path), goldens["smollm"]) if a["ids"] != b["ids"]]
        goldens[pre] = [{"text": a["text"], "ids": a["ids"]} for a, _ in changed[:MOST]]

lines = ",\n".join(
    f'"{name}":[\n' + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]"
    for name, rows in goldens.items()
)
made = "golden.py with llama-cpp-python 0.3.36 and SmolLM2-135M-Instruct.Q4_1.gguf"
(pathlib.Path(__file__).parent / "golden.json").write_text(f'{{\n"made by":"{made}",\n{lines}\n}}\n')
