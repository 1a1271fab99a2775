#!/usr/bin/env python3
"""The bar that our CPU trainer is measured against: the same training step in PyTorch.

The model is the Llama family of common/model: RMSNorm, rotary position embedding, grouped-query
attention, SwiGLU, embedding and head untied. A step is forward, backward, clipping of the global
gradient norm, and AdamW, in float32 or under bfloat16 autocast, on random tokens.

    python torch_llama.py                                    shape `small`, vocabulary 256, float32
    python torch_llama.py --vocabulary 8192 --dtype bfloat16
    python torch_llama.py --shape tiny
    python torch_llama.py --ranks 2 --threads 1              DistributedDataParallel over gloo
    python torch_llama.py --profile                          where the time goes, on standard error

Where PyTorch offers several ways to the same result, --attention, --norm, --projections and --optimizer select among
them; the defaults took the least processor time where we tried them (`tune.py --code` compares them on yours). The process prints one line of JSON. Environment variables matter as much as the code:
against_pytorch.py sets those that make PyTorch fast, so compare through it.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

SHAPES = {  # as configs/models/small and configs/models/tiny
    "small": dict(layers=4, hidden=256, heads=8, kv_heads=4, ffn=688, sequence=256, batch=8),
    "tiny": dict(layers=4, hidden=128, heads=8, kv_heads=4, ffn=352, sequence=64, batch=4),
}


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    for name in SHAPES["small"]:
        parser.add_argument("--" + name.replace("_", "-"), type=int, help="overrides the shape's value")
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32",
                        help="bfloat16 is torch.autocast over float32 weights")
    parser.add_argument("--attention", choices=["sdpa", "naive"], default="sdpa")
    parser.add_argument("--norm", choices=["written-out", "builtin"], default="written-out")
    parser.add_argument("--projections", choices=["merged", "separate"], default="merged",
                        help="merged: q, k, v as one matrix, gate and up as one")
    parser.add_argument("--optimizer", choices=["fused", "foreach", "loop"], default="fused")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model; needs a C++ compiler")
    parser.add_argument("--clip", type=float, default=1.0, help="largest global gradient norm; 0 leaves it alone")
    parser.add_argument("--threads", type=int, default=2, help="per rank")
    parser.add_argument("--ranks", type=int, default=1, help="the batch is divided among them")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    for name, value in SHAPES[options.shape].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.hidden % options.heads or options.heads % options.kv_heads:
        parser.error("--heads must divide --hidden, and --kv-heads must divide --heads")
    if options.batch % options.ranks:
        parser.error(f"--batch {options.batch} does not divide among --ranks {options.ranks}")
    return options


def start_ranks(options):
    """Runs this program once per rank and returns the first exit code that is not zero."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(options.ranks))
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env=dict(environment, RANK=str(rank)))
             for rank in range(options.ranks)]
    codes = [rank.wait() for rank in ranks]
    return next((code for code in codes if code), 0)


options = parse_options()
if options.ranks > 1 and "RANK" not in os.environ:
    sys.exit(start_ranks(options))

# OpenMP reads its thread count when the library is loaded, so this must come before the import.
os.environ["OMP_NUM_THREADS"] = str(options.threads)
try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError as error:
    sys.exit(f"torch_llama.py: {error}. Run bench/peers/setup.sh, or set PEER_PYTHON to a Python that has torch.")


class WrittenOutRMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, as separate element-wise operations."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


def make_norm(size):
    return nn.RMSNorm(size, eps=1e-5) if options.norm == "builtin" else WrittenOutRMSNorm(size)


class Projections(nn.Module):
    """Several bias-free linears of one input: as one matrix whose output is split, or one by one."""

    def __init__(self, inputs, *outputs):
        super().__init__()
        self.outputs = outputs
        widths = [sum(outputs)] if options.projections == "merged" else outputs
        self.linears = nn.ModuleList(nn.Linear(inputs, width, bias=False) for width in widths)

    def forward(self, x):
        if options.projections == "merged":
            return self.linears[0](x).split(self.outputs, dim=-1)
        return [linear(x) for linear in self.linears]


def rotate(x, cosine, sine):
    """Rotary embedding, in the convention that pairs element i with i + size / 2.  x: [batch, heads, sequence, size]"""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


def naive_attention(query, key, value):
    """Causal attention with the whole score matrix; key and value heads repeated for their group."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    length = query.shape[2]
    future = torch.full((length, length), float("-inf")).triu(1)
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5 + future
    return scores.softmax(-1) @ value


def attention(query, key, value):
    if options.attention == "naive":
        return naive_attention(query, key, value)
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.head_size = options.hidden // options.heads
        kv = options.kv_heads * self.head_size
        self.attention_norm = make_norm(options.hidden)
        self.qkv = Projections(options.hidden, options.hidden, kv, kv)
        self.output = nn.Linear(options.hidden, options.hidden, bias=False)
        self.ffn_norm = make_norm(options.hidden)
        self.gate_up = Projections(options.hidden, options.ffn, options.ffn)
        self.down = nn.Linear(options.ffn, options.hidden, bias=False)

    def split_heads(self, x):  # [batch, sequence, heads * size] -> [batch, heads, sequence, size]
        return x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)

    def forward(self, x, cosine, sine):
        query, key, value = map(self.split_heads, self.qkv(self.attention_norm(x)))
        mixed = attention(rotate(query, cosine, sine), rotate(key, cosine, sine), value)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.ffn_norm(x))
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(options.vocabulary, options.hidden)
        self.blocks = nn.ModuleList(Block() for _ in range(options.layers))
        self.norm = make_norm(options.hidden)
        self.head = nn.Linear(options.hidden, options.vocabulary, bias=False)

        size = options.hidden // options.heads
        frequency = 10000.0 ** (-torch.arange(0, size, 2) / size)
        angle = torch.outer(torch.arange(options.sequence), frequency).repeat(1, 2)  # [sequence, size]
        self.register_buffer("cosine", angle.cos())
        self.register_buffer("sine", angle.sin())
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def make_optimizer(model):
    how = {"fused": dict(fused=True), "foreach": dict(foreach=True), "loop": dict(foreach=False)}[options.optimizer]
    return torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, **how)


def main():
    rank = int(os.environ.get("RANK", 0)) if options.ranks > 1 else 0
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = Llama()
    parameters = list(model.parameters())
    optimizer = make_optimizer(model)
    network = torch.compile(model) if options.compile else model
    if options.ranks > 1:
        torch.distributed.init_process_group("gloo")
        network = nn.parallel.DistributedDataParallel(network)

    generator = torch.Generator().manual_seed(1 + rank)
    shape = (options.batch // options.ranks, options.sequence + 1)

    def step():
        """One training step; returns its time and its processor time in milliseconds, and its loss."""
        batch = torch.randint(0, options.vocabulary, shape, generator=generator)
        begin, begin_processor = time.perf_counter(), time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=options.dtype == "bfloat16"):
            loss = network(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        loss.backward()
        if options.clip:
            nn.utils.clip_grad_norm_(parameters, options.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        elapsed, processor = time.perf_counter() - begin, time.process_time() - begin_processor
        return elapsed * 1e3, processor * 1e3, loss.item()

    for _ in range(options.warmup):
        step()
    steps = [step() for _ in range(options.steps)]

    if options.profile and rank == 0:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(5):
                step()
        table = profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=15, max_name_column_width=60)
        print(table, file=sys.stderr)

    if rank == 0:
        milliseconds, processor_milliseconds, losses = zip(*steps)
        median = statistics.median(milliseconds)
        print(json.dumps({
            "torch": torch.__version__, "shape": options.shape, "vocabulary": options.vocabulary, "dtype": options.dtype,
            "attention": options.attention, "norm": options.norm, "projections": options.projections,
            "optimizer": options.optimizer, "compile": options.compile, "ranks": options.ranks,
            "threads": options.threads, "parameters": sum(p.numel() for p in parameters),
            "step_ms_median": round(median, 3), "step_ms_min": round(min(milliseconds), 3),
            "step_ms": [round(time, 3) for time in milliseconds],
            # Of all threads of this rank. With one thread it hardly changes when other programs compete for the cores.
            "processor_ms_median": round(statistics.median(processor_milliseconds), 3),
            "tokens_per_second": round(options.batch * options.sequence / median * 1e3, 1),
            "loss": round(losses[-1], 4)}))
    if options.ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
