#!/usr/bin/env python3
"""Training tokens/s of PyTorch on the shapes that gpu_check trains: what Shoal's own are held against.

A plain Llama/Qwen2 module: RMSNorm, rotary embedding, SwiGLU, grouped-query attention by SDPA's flash attention, all in bf16, blocks and loss
through torch.compile, AdamW fused. A step is one sequence that fills the microbatch, forward, backward and the optimizer; medians of several.

  gpu_check --shapes shapes.json
  torch_baseline.py --shapes shapes.json --cases 124m:4096,7b:4096 --budget-seconds 150 --output torch.json

Writes its results after each case, so that what ends it early loses no more than the case at hand. Where there is no torch, or no GPU (and no
--device cpu), it says so in a line, writes {"skipped": why} and succeeds.
"""

import argparse
import gc
import json
import statistics
import sys
import time

torch = None  # Imported in main, where its absence is no error.


def write(path, report):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
        file.write("\n")


def rotary_tables(shape, tokens, device):
    half = shape["head_dim"] // 2
    frequencies = shape["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(tokens, dtype=torch.float64)[:, None] * frequencies[None, :]
    return angles.cos().float().to(device), angles.sin().float().to(device)


def rotate(x, cosines, sines):  # x: [heads, tokens, head_dim]
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1).to(x.dtype)


def make_model(shape, device, compiled):
    nn, functional = torch.nn, torch.nn.functional
    heads, kv_heads, head_dim, hidden = (shape[key] for key in ("heads", "kv_heads", "head_dim", "hidden"))

    def linear(columns, rows, bias=False):
        return nn.Linear(columns, rows, bias=bias, device=device, dtype=torch.bfloat16)

    class RmsNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(hidden, device=device, dtype=torch.bfloat16))

        def forward(self, x):
            return functional.rms_norm(x, (hidden,), self.weight, shape["norm_epsilon"])

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.input_norm, self.attention_norm = RmsNorm(), RmsNorm()
            self.qkv = linear(hidden, (heads + 2 * kv_heads) * head_dim, shape["attention_bias"])
            self.output = linear(heads * head_dim, hidden)
            self.gate_up = linear(hidden, 2 * shape["intermediate"])
            self.down = linear(shape["intermediate"], hidden)

        def forward(self, x, cosines, sines):  # x: [tokens, hidden]
            tokens = x.shape[0]
            qkv = self.qkv(self.input_norm(x)).view(tokens, heads + 2 * kv_heads, head_dim).transpose(0, 1)
            q, k, v = qkv.split((heads, kv_heads, kv_heads))
            q, k = rotate(q, cosines, sines), rotate(k, cosines, sines)
            attended = functional.scaled_dot_product_attention(
                q[None], k[None], v[None], is_causal=True, enable_gqa=heads != kv_heads
            )[0]
            x = x + self.output(attended.transpose(0, 1).reshape(tokens, heads * head_dim))
            gate, up = self.gate_up(self.attention_norm(x)).chunk(2, dim=-1)
            return x + self.down(functional.silu(gate) * up)

    def chunk_loss(x, weight, labels):
        return functional.cross_entropy((x @ weight.t()).float(), labels, reduction="sum")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(shape["vocabulary"], hidden, device=device, dtype=torch.bfloat16)
            self.blocks = nn.ModuleList(Block() for _ in range(shape["layers"]))
            self.norm = RmsNorm()
            self.head = self.embedding if shape["tied_embeddings"] else linear(hidden, shape["vocabulary"])
            self.block_forward = torch.compile(Block.forward, dynamic=False) if compiled else Block.forward
            self.chunk_loss = torch.compile(chunk_loss, dynamic=False) if compiled else chunk_loss

        def forward(self, tokens, labels, cosines, sines):
            x = self.embedding(tokens)
            for block in self.blocks:
                x = self.block_forward(block, x, cosines, sines)
            x = self.norm(x)
            # All logits at once would take most of the memory for long sequences: then they are made again in the backward.
            rows = max(1024, LOGITS_AT_ONCE // shape["vocabulary"])
            again = x.shape[0] > rows
            loss = 0
            for begin in range(0, x.shape[0], rows):
                arguments = (x[begin : begin + rows], self.head.weight, labels[begin : begin + rows])
                if again:
                    loss = loss + torch.utils.checkpoint.checkpoint(self.chunk_loss, *arguments, use_reentrant=False)
                else:
                    loss = loss + self.chunk_loss(*arguments)
            return loss / x.shape[0]

    model = Model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith("norm.weight"):
                parameter.normal_(0, 0.02)
    return model


LOGITS_AT_ONCE = 16384 * 152064  # 5 GB in bf16


class Clock:
    """Marks in the order of the device's work, and the seconds between them."""

    def __init__(self, device):
        self.on_gpu = device == "cuda"

    def mark(self):
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, begin, end):
        if not self.on_gpu:
            return end - begin
        end.synchronize()
        return begin.elapsed_time(end) / 1000


def measure(shape, tokens, device, options):
    """One case: medians over steps, of the whole step and of its forward and backward."""
    torch.manual_seed(1)
    begin = time.monotonic()
    model = make_model(shape, device, options.compile)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids = torch.randint(0, shape["vocabulary"], (tokens + 1,), device=device)
    cosines, sines = rotary_tables(shape, tokens, device)
    clock = Clock(device)
    steps, passes, first_seconds = [], [], 0.0
    while len(steps) < options.warmup + options.steps:
        start = clock.mark()
        loss = model(ids[:-1], ids[1:], cosines, sines)
        loss.backward()
        passed = clock.mark()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end = clock.mark()
        steps.append(clock.between(start, end))
        passes.append(clock.between(start, passed))
        if len(steps) == 1:
            first_seconds = time.monotonic() - begin
        # A case that is slow is measured less often, but at least twice.
        if len(steps) >= options.warmup + 2 and time.monotonic() - begin > first_seconds + options.case_seconds:
            break
    if not torch.isfinite(loss):
        raise RuntimeError("the loss is not finite")
    step = statistics.median(steps[options.warmup :])
    forward_backward = statistics.median(passes[options.warmup :])
    result = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "steps": len(steps) - options.warmup,
        "first_step_seconds": first_seconds,
        "step_seconds": step,
        "forward_backward_seconds": forward_backward,
        "tokens_per_second": tokens / step,
        "tokens_per_second_without_optimizer": tokens / forward_backward,
    }
    if device == "cuda":
        result["peak_bytes"] = torch.cuda.max_memory_allocated()
    return result


def run_case(shape, tokens, device, options):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = [SDPBackend.FLASH_ATTENTION] if device == "cuda" else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    try:
        with sdpa_kernel(backends):
            return measure(shape, tokens, device, options)
    except Exception as error:  # Whatever one case fails of, the others are measured.
        lines = str(error).strip().splitlines()
        return {"error": f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]}
    finally:
        torch._dynamo.reset()
        gc.collect()  # Or what one case keeps in a cycle is missing to the next.
        if device == "cuda":
            torch.cuda.empty_cache()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", required=True, help="what gpu_check --shapes wrote")
    parser.add_argument("--cases", required=True, help="SHAPE:TOKENS, comma separated, in the order they are measured")
    parser.add_argument("--output", required=True, help="JSON file")
    parser.add_argument("--budget-seconds", type=float, default=150, help="no case is begun after that")
    parser.add_argument("--case-seconds", type=float, default=4, help="of a case's steps after its first")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    return parser.parse_args()


def skip(options, why):
    print(f"torch baseline skipped: {why}", flush=True)
    write(options.output, {"skipped": why})
    return 0


def main():
    global torch
    options = parse_arguments()
    begin = time.monotonic()
    try:
        import torch as imported
        import torch.utils.checkpoint
    except ImportError as error:
        return skip(options, str(error))
    torch = imported
    if options.device == "cuda" and not torch.cuda.is_available():
        return skip(options, f"torch {torch.__version__} sees no GPU")
    with open(options.shapes, encoding="utf-8") as file:
        shapes = json.load(file)
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    report = {"torch": torch.__version__, "device": name, "attention": "SDPA, flash", "compiled": options.compile, "cases": []}
    for case in options.cases.split(","):
        shape, tokens = case.split(":")
        result = {"shape": shape, "tokens": int(tokens)}
        if time.monotonic() - begin > options.budget_seconds:
            result["error"] = "no time was left"
        else:
            result |= run_case(shapes[shape], int(tokens), options.device, options)
        report["cases"].append(result)
        write(options.output, report)
        found = result.get("error") or f"{result['tokens_per_second']:.0f} tokens/s, first step after {result['first_step_seconds']:.0f} s"
        print(f"torch {shape} {tokens}: {found}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
