#!/usr/bin/env python3
"""Makes the tokenizer fixtures beside this file: small tokenizer.json files of every kind that
Shoal reads, and what Hugging Face's tokenizers library (pip install tokenizers) makes of many texts
with them.

Run it in this folder. trained.tokenizer.json is the exception: Shoal's own trainer made it
(train_tokenizer.h), and only the library's ids for it are made here. The files are committed, so
that tests need no Python.
"""

import json
import random

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and then the dog sleeps. "
    "It's what they'd do; we'll see, I'm sure.",
    "Natalia sold 48 clips in April and half as many in May: 48/2 = 24, "
    "so 48+24 = 72 clips altogether. #### 72",
    'def add(a, b):\n    return a + b\n\n\nfor i in range(10):\n\tprint(f"{i}: {add(i, 1)}")\n',
    "if (x != nullptr && x->size() >= 1024) { return std::move(*x); }  // 64 KiB\r\n",
    "Größe, Übermaß, façade, naïve, señor, Ærø, Łódź, ğüş, smörgåsbord.",
    "Привет, мир! Как дела сегодня? Всё хорошо.",
    "你好，世界。今天天气很好，我们去公园吧！ 日本語のテキストとカタカナ。 안녕하세요 세계",
    "مرحبا بالعالم كيف حالك اليوم",
    "नमस्ते दुनिया आज का दिन अच्छा है",
    "שלום עולם",
    "Emoji: 😀😃👍🏽 👩‍👩‍👧‍👦 🇩🇪 ✨ → ∑ ∞ ≠ ½ ² Ⅷ ①",
]

TEXTS = CORPUS + [
    "",
    " ",
    "  ",
    "   a",
    "a   ",
    "\n",
    "\n\n\n",
    " \n ",
    "\t\t x",
    "\r\n\r\nx",
    "a\u00a0b\u2003c\u3000d\u2028e",
    "\u0085x",
    "Hello world",
    " Hello world",
    "hello  world   three    four",
    "HELLO'S WE'LL YOU'RE I'VE 'tis o'clock '' 'S 'ſ",
    "1234567890 12 3 4567 ٣٤٥ ½ Ⅷ 1,234.56 -7e-10 0x1F",
    "x=1;y=22;z=333",
    "!!! ??? ... --- ___ ***",
    "a_b_c d__e",
    "cafe\u0301 café A\u030a Å \u1e9b\u0323 \ufb01 \u212b \uac00 \u1100\u1161 \u0344",
    "e\u0301\u0301\u0323",
    "z\u0301\u0302\u0303",
    "\U0001d49c\U0001d4b7 \U0001f1e9\U0001f1ea \U00020000 \U0010ffff",
    "zero\u200bwidth\u200cnon\u200djoiner\ufeff",
    "nul\x00byte \x01\x7f",
    "<unk> <s> </s> <0x41> ▁ ▁▁a",
    "<|endoftext|>",
    "a<|endoftext|>b",
    " <|endoftext|> ",
    "<|im_start|>user\nHi<|im_end|>\n",
    "<|im_start|><|im_start|>",
    "<|im_sta",
    "<<|im_end|>>",
    "[MASK] x[MASK]y  [MASK]  z",
    "one word, oneword, one-word word_one word",
    "<a> <ab> <abc> <abcd",
    "ééAddedéé  Added  ",
    "x\t\n",
    "a" * 200,
    " " * 70,
    "ab" * 64,
    "\n" * 33,
    "the the the the the",
    "1" * 50,
    "🤗" * 20,
    "é" * 30,
    "你好" * 20,
]

PIECES = [
    "the",
    " the",
    "ing",
    "a",
    "b",
    " ",
    "  ",
    "\n",
    "\t",
    "'s",
    "'LL",
    "1",
    "23",
    "٣",
    "é",
    "e\u0301",
    "你",
    "好",
    "😀",
    "ß",
    "-",
    "_",
    ".",
    "!?",
    "<s>",
    "</s>",
    "<|endoftext|>",
    "<|im_end|>",
    "[MASK]",
    "word",
    "<ab>",
    "▁",
    "\u00a0",
    "\u3000",
    "½",
    "क्",
    "ा",
    "\x00",
    "\u200d",
    "\r\n",
    "Привет",
    "added",
    "Added",
    "{",
    "}",
    "()",
    "=",
    "\\",
    "/",
    '"',
]


def texts():
    rng = random.Random(7)
    return TEXTS + ["".join(rng.choices(PIECES, k=rng.randint(1, 30))) for _ in range(60)]


def train(tokenizer, specials, size, alphabet):
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials, show_progress=False, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(CORPUS * 2, trainer)


def byte_level(split, specials, size, normalizer=None, use_regex=False, prefix=False):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    level = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=use_regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split + [level]) if split else level
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, specials, size, pre_tokenizers.ByteLevel.alphabet())
    return tokenizer


def isolated(pattern):
    return [pre_tokenizers.Split(Regex(pattern), "isolated", invert=False)]


def sentencepiece_like(metaspace):
    pieces = [f"<0x{b:02X}>" for b in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    train(tokenizer, ["<unk>", "<s>", "</s>"] + pieces, 620, [])
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = data["added_tokens"][:3]
    if metaspace:
        data["pre_tokenizer"]["split"] = False
        decoder = [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]
    else:
        data["pre_tokenizer"] = None
        data["normalizer"] = {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        }
        decoder = [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]
    data["decoder"] = {"type": "Sequence", "decoders": decoder}
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def make():
    out = {}
    out["gpt2"] = byte_level([], ["<|endoftext|>"], 420, use_regex=True)
    out["gpt2_prefix_space"] = byte_level([], ["<|endoftext|>"], 300, use_regex=True, prefix=True)
    qwen = byte_level(
        isolated(QWEN2), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], 450, normalizers.NFC()
    )
    qwen.post_processor = processors.ByteLevel(trim_offsets=False)
    out["qwen2"] = qwen
    llama = byte_level(
        isolated(LLAMA3),
        [
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
        ],
        430,
    )
    bos = ("<|begin_of_text|>", llama.token_to_id("<|begin_of_text|>"))
    llama.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|begin_of_text|> $A",
                pair="<|begin_of_text|> $A <|begin_of_text|> $B",
                special_tokens=[bos],
            ),
        ]
    )
    data = json.loads(llama.to_str())
    data["model"]["ignore_merges"] = True
    # Words that are tokens though no merges lead to them: what ignore_merges is for.
    for word in ["ĠNatalia", "altogether", "Ġweather"]:
        data["model"]["vocab"].setdefault(word, len(data["model"]["vocab"]))
    out["llama3"] = Tokenizer.from_str(json.dumps(data))
    out["o200k"] = byte_level(isolated(O200K), ["<|endoftext|>"], 400)
    splits = (
        isolated(r"[\r\n]")
        + isolated(r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿDŽ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆ]+")
        + isolated(r"\s?[!-/:-~！-／：-～‘-‟　-。]+")
    )
    splits += (
        isolated(r"\s+$")
        + isolated(r"[一-龥ࠀ-一가-퟿]+")
        + [pre_tokenizers.Digits(individual_digits=True)]
    )
    out["deepseek"] = byte_level(splits, ["<|endoftext|>"], 400)
    out["llama2"] = sentencepiece_like(metaspace=False)
    out["metaspace"] = sentencepiece_like(metaspace=True)

    added = byte_level(
        [
            pre_tokenizers.Split(" ", "merged_with_next"),
            pre_tokenizers.Split(Regex(r"\p{P}"), "removed"),
        ],
        ["<|endoftext|>"],
        300,
        normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"a{2,}"), "A")]),
    )
    added.add_tokens(
        [
            AddedToken("[MASK]", lstrip=True, rstrip=True, normalized=False),
            AddedToken("word", single_word=True),
            AddedToken("<a>", normalized=False),
            AddedToken("<ab>", normalized=False),
            AddedToken("<abc>", normalized=False),
            AddedToken("éé", normalized=True),
            AddedToken("Added", lstrip=True, normalized=True),
        ]
    )
    added.add_special_tokens(
        [AddedToken("<|im_end|>", rstrip=True), AddedToken("<s>", lstrip=True)]
    )
    out["added"] = added
    out["trained"] = Tokenizer.from_file("trained.tokenizer.json")
    return out


def main():
    for name, tokenizer in make().items():
        cases = []
        for text in texts():
            ids = tokenizer.encode(text).ids
            cases.append(
                {
                    "text": text,
                    "ids": ids,
                    "plain_ids": tokenizer.encode(text, add_special_tokens=False).ids,
                    "decoded": tokenizer.decode(ids, skip_special_tokens=True),
                    "decoded_all": tokenizer.decode(ids, skip_special_tokens=False),
                }
            )
        data = json.loads(tokenizer.to_str())
        if name != "llama3":  # older files have merges as strings
            data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
        if name != "trained":
            with open(f"{name}.tokenizer.json", "w", encoding="utf-8") as file:
                json.dump(data, file, ensure_ascii=False, separators=(",", ":"))
        with open(f"{name}.expected.json", "w", encoding="utf-8") as file:
            json.dump(cases, file, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    main()
