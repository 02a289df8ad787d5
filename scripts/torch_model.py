"""What torch_baseline.py trains: a Llama/Qwen2 module in bf16, and two optimizers for it."""

import torch
import torch.utils.checkpoint

LOGITS_AT_ONCE = 16384 * 152064  # 5 GB in bf16
# Whose fp32 gradients are there at once, or one parameter's that is larger.
BUCKET_PARAMETERS = 256 << 20


def rotary_tables(shape, length, device):
    half = shape["head_dim"] // 2
    frequencies = shape["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies[None, :]
    return angles.cos().float().to(device), angles.sin().float().to(device)


def rotate(x, cosines, sines):  # x: [sequences, heads, length, head_dim]
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat(
        (first * cosines - second * sines, second * cosines + first * sines), dim=-1
    ).to(x.dtype)


def make_model(case, device, compiled):
    nn, functional = torch.nn, torch.nn.functional
    shape = case["shape"]
    heads, kv_heads, head_dim, hidden = (
        shape[key] for key in ("heads", "kv_heads", "head_dim", "hidden")
    )
    again = case["recompute"] == "full"

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

        def forward(self, x, cosines, sines):  # x: [sequences, length, hidden]
            sequences, length, _ = x.shape
            qkv = (
                self.qkv(self.input_norm(x))
                .view(sequences, length, heads + 2 * kv_heads, head_dim)
                .transpose(1, 2)
            )
            q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
            q, k = rotate(q, cosines, sines), rotate(k, cosines, sines)
            attended = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=heads != kv_heads
            )
            x = x + self.output(
                attended.transpose(1, 2).reshape(sequences, length, heads * head_dim)
            )
            gate, up = self.gate_up(self.attention_norm(x)).chunk(2, dim=-1)
            return x + self.down(functional.silu(gate) * up)

    def chunk_loss(x, weight, labels):
        return functional.cross_entropy((x @ weight.t()).float(), labels, reduction="sum")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(
                shape["vocabulary"], hidden, device=device, dtype=torch.bfloat16
            )
            self.blocks = nn.ModuleList(Block() for _ in range(shape["layers"]))
            self.norm = RmsNorm()
            self.head = (
                self.embedding if shape["tied_embeddings"] else linear(hidden, shape["vocabulary"])
            )
            self.block_forward = (
                torch.compile(Block.forward, dynamic=False) if compiled else Block.forward
            )
            self.chunk_loss = torch.compile(chunk_loss, dynamic=False) if compiled else chunk_loss

        def forward(self, tokens, labels, cosines, sines):  # tokens, labels: [sequences, length]
            x = self.embedding(tokens)
            for block in self.blocks:
                if again:
                    x = torch.utils.checkpoint.checkpoint(
                        self.block_forward, block, x, cosines, sines, use_reentrant=False
                    )
                else:
                    x = self.block_forward(block, x, cosines, sines)
            x, labels = self.norm(x).view(-1, hidden), labels.reshape(-1)
            # All logits at once would take most of the memory for long sequences: then they are
            # made again in the backward.
            rows = max(1024, LOGITS_AT_ONCE // shape["vocabulary"])
            loss = 0
            for begin in range(0, x.shape[0], rows):
                arguments = (
                    x[begin : begin + rows],
                    self.head.weight,
                    labels[begin : begin + rows],
                )
                if x.shape[0] > rows:
                    loss = loss + torch.utils.checkpoint.checkpoint(
                        self.chunk_loss, *arguments, use_reentrant=False
                    )
                else:
                    loss = loss + self.chunk_loss(*arguments)
            return loss / x.shape[0]

    model = Model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith("norm.weight"):
                parameter.normal_(0, 0.02)
    return model


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-5, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


class Bf16Optimizer:
    """Weights, gradients and moments in bf16: steps that are small beside a weight are lost."""

    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.optimizer = adamw(self.parameters)

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class MasterOptimizer:
    """fp32 masters and moments of weights in bf16. Buckets,
    so that only one bucket's fp32 gradients are there at a time."""

    def __init__(self, parameters):
        self.buckets = []  # (parameters, their masters, optimizer)
        bucket = []
        for parameter in parameters:
            bucket.append(parameter)
            if sum(each.numel() for each in bucket) >= BUCKET_PARAMETERS:
                self.add(bucket)
                bucket = []
        if bucket:
            self.add(bucket)

    def add(self, bucket):
        masters = [parameter.detach().float() for parameter in bucket]
        self.buckets.append((bucket, masters, adamw(masters)))

    def step(self):
        for bucket, masters, optimizer in self.buckets:
            for parameter, master in zip(bucket, masters):
                master.grad, parameter.grad = parameter.grad.float(), None
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                torch._foreach_copy_(bucket, masters)
