#!/usr/bin/env python3
"""Training tokens/s of PyTorch on the cases that gpu_check trains: what ours are held against.

A plain Llama/Qwen2 module: RMSNorm, rotary embedding, SwiGLU, grouped-query attention by SDPA's
flash attention, all in bf16, blocks and loss through torch.compile, AdamW fused. A step is one
microbatch, forward, backward and the optimizer; medians of several. Twice: with an optimizer that
has nothing but bf16, and with one that keeps fp32 masters and moments, as Shoal does and as FSDP's
mixed precision does.

  gpu_check --shapes shapes.json
  torch_baseline.py --shapes shapes.json --prepare                       compiles what the next one
      runs, into PyTorch's cache of the machine
  torch_baseline.py --shapes shapes.json --budget-seconds 150 --output torch.json

Cases are measured in the order of the file. Writes its results after each case, so that what ends
it early loses no more than the case at hand. A case that does not compile is measured without; one
that does not fit is measured with recompute of whole blocks (checkpoints); both say so. Where there
is no torch, or no GPU (and no --device cpu), it says so in a line, writes {"skipped": why} and
succeeds.
"""

import argparse
import gc
import json
import statistics
import sys
import time

# Imported in main, where torch's absence is no error.
torch = None
torch_model = None


def write(path, report):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
        file.write("\n")


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


class Trained:
    """A model with its data, and an optimizer of one kind at a time."""

    def __init__(self, case, device, compiled):
        torch.manual_seed(1)
        shape, tokens, sequences = case["shape"], case["tokens"], case["sequences"]
        self.model = torch_model.make_model(case, device, compiled)
        self.optimizer = torch_model.Bf16Optimizer(self.model.parameters())
        ids = torch.randint(
            0, shape["vocabulary"], (sequences, tokens // sequences + 1), device=device
        )
        self.inputs = (
            ids[:, :-1],
            ids[:, 1:],
            *torch_model.rotary_tables(shape, tokens // sequences, device),
        )
        self.clock = Clock(device)

    def keep_masters(self):
        self.optimizer = None  # Its moments go before the others come.
        self.optimizer = torch_model.MasterOptimizer(self.model.parameters())

    def step(self):
        """Loss, seconds of it all, seconds of forward and backward."""
        start = self.clock.mark()
        loss = self.model(*self.inputs)
        loss.backward()
        passed = self.clock.mark()
        self.optimizer.step()
        end = self.clock.mark()
        return loss, self.clock.between(start, end), self.clock.between(start, passed)


def timed_steps(trained, options, seconds):
    """Of steps after warm ones: medians of the whole step and of its forward and backward, in
    seconds, how many they are, and the last loss."""
    steps, passes = [], []
    begin = time.monotonic()
    while True:
        trained.step()
        if time.monotonic() - begin >= options.warm_seconds:
            break
    begin = time.monotonic()
    while len(steps) < options.steps:
        loss, whole, passed = trained.step()
        steps.append(whole)
        passes.append(passed)
        # A case that is slow is measured less often, but at least twice.
        if len(steps) >= 2 and time.monotonic() - begin >= seconds:
            break
    if not torch.isfinite(loss):
        raise RuntimeError("the loss is not finite")
    return statistics.median(steps), statistics.median(passes), len(steps), loss.item()


def measure_masters(case, trained, options):
    """The same case with fp32 masters and moments: {"error": why} where they do not fit."""
    try:
        if options.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        trained.keep_masters()
        step, _, steps, loss = timed_steps(trained, options, options.case_seconds / 2)
    except Exception as error:  # What was measured without stays.
        return {"error": describe(error)}
    return {
        "steps": steps,
        "loss": loss,
        "step_seconds": step,
        "tokens_per_second": case["tokens"] / step,
    } | peak_bytes(options.device)


def peak_bytes(device):
    return {"peak_bytes": torch.cuda.max_memory_allocated()} if device == "cuda" else {}


def measure(case, options, compiled):
    """One case: of whole steps and of forward and backward alone, then of whole steps
    with fp32 masters."""
    begin = time.monotonic()
    trained = Trained(case, options.device, compiled)
    trained.step()
    first_seconds = time.monotonic() - begin
    step, forward_backward, steps, loss = timed_steps(trained, options, options.case_seconds)
    result = {
        "parameters": sum(parameter.numel() for parameter in trained.model.parameters()),
        "compiled": compiled,
        "recompute": case["recompute"],
        "steps": steps,
        "loss": loss,
        "first_step_seconds": first_seconds,
        "step_seconds": step,
        "forward_backward_seconds": forward_backward,
        "tokens_per_second": case["tokens"] / step,
        "tokens_per_second_without_optimizer": case["tokens"] / forward_backward,
    } | peak_bytes(options.device)
    return result | {"fp32_masters": measure_masters(case, trained, options)}


def describe(error):
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def describe_result(result):
    masters = result["fp32_masters"]
    with_masters = masters.get("error") or f"{masters['tokens_per_second']:.0f}"
    return (
        f"{result['tokens_per_second']:.0f} tokens/s, with fp32 masters {with_masters}, "
        f"first step after {result['first_step_seconds']:.0f} s"
    )


def clean(device):
    torch._dynamo.reset()
    gc.collect()  # Or what one case keeps in a cycle is missing to the next.
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def flash_alone(device):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(
        [SDPBackend.FLASH_ATTENTION]
        if device == "cuda"
        else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    )


def run_case(case, options):
    """What was measured, or {"error": why}; other ways are tried where the case's own fails."""
    compiled, notes = options.compile, []
    while True:
        try:
            with flash_alone(options.device):
                result = measure(case, options, compiled)
            return result | ({"note": "; ".join(notes)} if notes else {})
        except Exception as error:  # Whatever one case fails of, the others are measured.
            failure, reason = None, describe(error)
            if isinstance(error, torch.cuda.OutOfMemoryError):
                if case["recompute"] != "full":
                    failure = (
                        "does not fit without recompute: measured with recompute of whole blocks"
                    )
            elif compiled:
                failure = f"not compiled ({reason})"
        clean(options.device)
        if failure is None:
            return {"error": "; ".join(notes + [reason])}
        notes.append(failure)
        if failure.startswith("not compiled"):
            compiled = False
        else:
            case = case | {"recompute": "full"}


def prepare(cases, options):
    """Compiles each case over one block, so that the cache has it for a model of any depth."""
    begin = time.monotonic()
    for case in cases:
        if time.monotonic() - begin > options.budget_seconds:
            print(f"torch: no time was left to compile {case['case']}", flush=True)
            return
        started = time.monotonic()
        try:
            with flash_alone(options.device):
                Trained(
                    case | {"shape": case["shape"] | {"layers": 1}}, options.device, True
                ).step()
            print(
                f"torch: compiled {case['case']} in {time.monotonic() - started:.0f} s", flush=True
            )
        except Exception as error:  # It is measured all the same, and says what it fails of.
            print(f"torch: {case['case']} was not compiled: {describe(error)}", flush=True)
        clean(options.device)


def time_attention(case, backend, device):
    """Seconds of SDPA's forward and backward by one backend, medians."""
    from torch.nn.attention import sdpa_kernel

    length = case["tokens"] // case["sequences"]
    clock = Clock(device)

    def heads(count):
        return torch.randn(
            case["sequences"],
            count,
            length,
            case["head_dim"],
            device=device,
            dtype=torch.bfloat16,
            requires_grad=True,
        )

    q, k, v = heads(case["heads"]), heads(case["kv_heads"]), heads(case["kv_heads"])
    d_out = torch.randn_like(q)
    forwards, backwards = [], []
    begin = time.monotonic()
    with sdpa_kernel([backend]):
        while len(forwards) < 4 or (len(forwards) < 30 and time.monotonic() - begin < 0.3):
            start = clock.mark()
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=case["heads"] != case["kv_heads"]
            )
            middle = clock.mark()
            torch.autograd.grad(out, (q, k, v), d_out)
            end = clock.mark()
            forwards.append(clock.between(start, middle))
            backwards.append(clock.between(middle, end))
    warm = len(forwards) // 3
    return {
        "forward_seconds": statistics.median(forwards[warm:]),
        "backward_seconds": statistics.median(backwards[warm:]),
    }


def run_attention(cases, device):
    from torch.nn.attention import SDPBackend

    backends = {"flash": SDPBackend.FLASH_ATTENTION}
    if device == "cuda":
        backends["cuDNN"] = SDPBackend.CUDNN_ATTENTION
    for case in cases:
        for name, backend in backends.items():
            result = {"case": case["case"], "backend": name}
            try:
                result |= time_attention(case, backend, device)
            except Exception as error:  # A backend may refuse a shape.
                result["error"] = describe(error)
            yield result
        clean(device)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", required=True, help="what gpu_check --shapes wrote")
    parser.add_argument("--output", help="JSON file")
    parser.add_argument("--prepare", action="store_true", help="compile and measure nothing")
    parser.add_argument(
        "--shard", default="0/1", help="of the cases to compile: I/N, every Nth from the Ith on"
    )
    parser.add_argument(
        "--budget-seconds", type=float, default=150, help="no case is begun after that"
    )
    parser.add_argument(
        "--warm-seconds", type=float, default=1, help="of a case's steps that do not count"
    )
    parser.add_argument(
        "--case-seconds", type=float, default=3, help="of a case's steps that count; two at least"
    )
    parser.add_argument("--steps", type=int, default=50, help="that count, at most")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    options = parser.parse_args()
    if not options.prepare and options.output is None:
        parser.error("--output is missing")
    return options


def skip(options, why):
    print(f"torch baseline skipped: {why}", flush=True)
    if options.output is not None:
        write(options.output, {"skipped": why})
    return 0


def main():
    global torch, torch_model
    options = parse_arguments()
    begin = time.monotonic()
    try:
        import torch as imported
        import torch._dynamo

        import torch_model as imported_model
    except ImportError as error:
        return skip(options, str(error))
    torch, torch_model = imported, imported_model
    if options.device == "cuda" and not torch.cuda.is_available():
        return skip(options, f"torch {torch.__version__} sees no GPU")
    print(f"torch {torch.__version__} was imported in {time.monotonic() - begin:.0f} s", flush=True)
    with open(options.shapes, encoding="utf-8") as file:
        shapes = json.load(file)
    if options.prepare:
        first, step = (int(number) for number in options.shard.split("/"))
        prepare(shapes["cases"][first::step], options)
        return 0
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    report = {
        "torch": torch.__version__,
        "device": name,
        "attention": "SDPA, flash",
        "compiled": options.compile,
        "cases": [],
        "attention_cases": [],
    }
    write(options.output, report)
    for result in run_attention(shapes["attention"], options.device):
        report["attention_cases"].append(result)
    write(options.output, report)
    longest = 0  # seconds that a case took
    for case in shapes["cases"]:
        result = {"case": case["case"]}
        started = time.monotonic()
        if started - begin + longest / 2 > options.budget_seconds:
            result["error"] = "no time was left"
        else:
            result |= run_case(case, options)
            clean(options.device)
            longest = max(longest, time.monotonic() - started)
        report["cases"].append(result)
        write(options.output, report)
        found = result.get("error") or describe_result(result)
        print(f"torch {case['case']}: {found}, {time.monotonic() - started:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
