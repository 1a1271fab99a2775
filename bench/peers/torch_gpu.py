#!/usr/bin/env python3
"""What PyTorch reaches on one GPU where bench_cuda and step01_dp are measured: a copy, the model's matrix products, fused
attention, and whole training steps of the same Llama in bfloat16. scripts/gpu_check.sh puts both side by side.

    python torch_gpu.py                                     everything at the shapes of configs/models/playbook-1.34b
    python torch_gpu.py --section step --micro-batch-size 8 --seq-length 2048 --json FILE
    python torch_gpu.py --quick                             tiny shapes: does it run?

Prints one line of JSON (or writes it to a file): rows with the names that bench_cuda gives them. Where there is no PyTorch, or
it sees no GPU, that is {"missing": "..."} and no error. A section that fails leaves its message, and the others go on.
"""
import argparse
import json
import os
import statistics
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SECTIONS = ("limits", "gemm", "attention", "step")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--section", choices=("all", *SECTIONS), default="all")
    parser.add_argument("--model", help="config.json whose shapes are used (default: playbook-1.34b, with --quick tiny)")
    parser.add_argument("--num-hidden-layers", type=int, help="instead of the model's")
    parser.add_argument("--micro-batch-size", type=int, default=8, help="halved until it fits into the GPU's memory")
    parser.add_argument("--seq-length", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", help="file to write instead of standard output")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    name = "tiny" if options.quick else "playbook-1.34b"
    options.model = options.model or os.path.join(ROOT, "configs", "models", name + ".json")
    with open(options.model) as file:
        options.config = json.load(file)
    if options.quick:
        options.micro_batch_size, options.seq_length, options.steps = 2, 64, 4
    if options.num_hidden_layers:
        options.config["num_hidden_layers"] = options.num_hidden_layers
    return options


def finish(options, result):
    text = json.dumps(result)
    if options.json:
        with open(options.json, "w") as file:
            file.write(text + "\n")
    else:
        print(text)
    sys.exit(0)


options = parse_options()
try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError as error:
    finish(options, {"missing": f"this Python has no PyTorch ({error})"})
if not torch.cuda.is_available():
    finish(options, {"missing": f"PyTorch {torch.__version__} sees no GPU"})

TOKENS = 64 if options.quick else 16384
HIDDEN, FFN, VOCABULARY = (options.config[key] for key in ("hidden_size", "intermediate_size", "vocab_size"))
HEADS = options.config["num_attention_heads"]
KV_HEADS = options.config.get("num_key_value_heads", HEADS)
HEAD_SIZE = HIDDEN // HEADS
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def seconds(call):
    """Of one call: the median of seven rounds, each long enough to forget the host."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()

    def rounds(calls):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e-3 / calls

    if options.quick:
        return rounds(1)
    calls = min(max(int(20e-3 / rounds(1)), 1), 256)
    return statistics.median(rounds(calls) for _ in range(7))


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def limits():
    source = torch.zeros(1 << (12 if options.quick else 28), device="cuda")
    copy = torch.empty_like(source)
    rows = [dict(limit="copy", gb_per_s=2 * 4 * source.numel() / seconds(lambda: copy.copy_(source)) / 1e9)]
    for name, size in (("bfloat16", 8192), ("float32", 4096)):
        size = 32 if options.quick else size
        a, b = random(size, size, dtype=DTYPES[name]), random(size, size, dtype=DTYPES[name])
        c = torch.empty_like(a)
        rate = 2 * size**3 / seconds(lambda: torch.mm(a, b.t(), out=c)) / 1e12
        rows.append(dict(limit=f"matrix product {name}", tflops=rate))
    return rows


def gemm():
    rows = []
    for name, dtype in DTYPES.items():
        tokens = min(TOKENS, 4096) if name == "float32" else TOKENS
        layers = [("qkv", tokens, HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_SIZE), ("attention_output", tokens, HEADS * HEAD_SIZE, HIDDEN),
                  ("gate_up", tokens, HIDDEN, 2 * FFN), ("down", tokens, FFN, HIDDEN), ("head", tokens, HIDDEN, VOCABULARY),
                  ("head_chunk", min(tokens, 256), HIDDEN, VOCABULARY)]
        for layer, count, inputs, outputs in layers:
            x, w, y = random(count, inputs, dtype=dtype), random(outputs, inputs, dtype=dtype), random(count, outputs, dtype=dtype)
            passes = {"forward": ((count, outputs, inputs), lambda to: torch.mm(x, w.t(), out=to))}
            if layer != "head_chunk":
                passes["input"] = ((count, inputs, outputs), lambda to: torch.mm(y, w, out=to))
                passes["weight"] = ((outputs, inputs, count), lambda to: torch.mm(y.t(), x, out=to))
            for name_of_pass, ((m, n, k), product) in passes.items():
                to = torch.empty(m, n, device="cuda", dtype=dtype)
                time_of_call = seconds(lambda: product(to))
                rows.append(dict(layer=layer, **{"pass": name_of_pass}, dtype=name, m=m, n=n, k=k, us=time_of_call * 1e6,
                                 tflops=2 * m * n * k / time_of_call / 1e12))
    return rows


def attention():
    """Fused attention of PyTorch's two kinds: flash, and cuDNN's where it is built in."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    kinds = {"flash": SDPBackend.FLASH_ATTENTION}
    if hasattr(SDPBackend, "CUDNN_ATTENTION"):
        kinds["cudnn"] = SDPBackend.CUDNN_ATTENTION
    rows = []
    for head_size in (64, 128):
        for length in ((24, 40) if options.quick else (2048, 8192, 32768)):
            batch, heads = max(TOKENS // length, 1), 2 if options.quick else HIDDEN // head_size
            # Heads lie side by side in a row, as in our tensors.
            q, k, v, d_out = (random(batch, length, heads, head_size).transpose(1, 2) for _ in range(4))
            for one in (q, k, v):
                one.requires_grad_()
            flops = 4 * batch * heads * head_size * length**2 / 2
            for kind, backend in kinds.items():
                row = dict(head_size=head_size, length=length, batch=batch, heads=heads, kind=kind)
                try:
                    with sdpa_kernel(backend):
                        forward = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
                        with torch.no_grad():
                            time_of_call = seconds(forward)
                        rows.append({**row, "pass": "forward", "us": time_of_call * 1e6, "tflops": flops / time_of_call / 1e12})
                        out = forward()
                        time_of_call = seconds(lambda: torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True))
                        rows.append({**row, "pass": "backward", "us": time_of_call * 1e6,
                                     "tflops": 2.5 * flops / time_of_call / 1e12})
                except RuntimeError as error:
                    rows.append({**row, "error": str(error).splitlines()[0]})
    return rows


# ---- whole steps ------------------------------------------------------------------------------------------------------------


def rotate(x, cosine, sine):
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(HIDDEN, eps=1e-5), nn.RMSNorm(HIDDEN, eps=1e-5)
        self.columns = (HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE)
        self.qkv = nn.Linear(HIDDEN, sum(self.columns), bias=False)
        self.output = nn.Linear(HEADS * HEAD_SIZE, HIDDEN, bias=False)
        self.gate_up, self.down = nn.Linear(HIDDEN, 2 * FFN, bias=False), nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x, cosine, sine):
        heads = lambda part: part.unflatten(-1, (-1, HEAD_SIZE)).transpose(1, 2)
        q, k, v = map(heads, self.qkv(self.attention_norm(x)).split(self.columns, dim=-1))
        mixed = F.scaled_dot_product_attention(rotate(q, cosine, sine), rotate(k, cosine, sine), v, is_causal=True,
                                               enable_gqa=HEADS != KV_HEADS)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(options.config["num_hidden_layers"]))
        self.norm = nn.RMSNorm(HIDDEN, eps=1e-5)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        if options.config.get("tie_word_embeddings"):
            self.head.weight = self.embedding.weight
        frequency = options.config.get("rope_theta", 10000.0) ** (-torch.arange(0, HEAD_SIZE, 2, device="cuda") / HEAD_SIZE)
        angle = torch.outer(torch.arange(options.seq_length, device="cuda"), frequency).repeat(1, 2)
        self.register_buffer("cosine", angle.cos().to(torch.bfloat16))
        self.register_buffer("sine", angle.sin().to(torch.bfloat16))

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def train(micro_batch):
    """Weights and activations in bfloat16, masters and AdamW's moments in float32, as step01_dp has them. Returns steps in seconds."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Llama().to(torch.bfloat16)
    parameters = [p for p in model.parameters()]
    for p in parameters:
        if p.dim() > 1:
            nn.init.normal_(p, std=0.02)
    masters = [p.detach().float() for p in parameters]
    optimizer = torch.optim.AdamW(masters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    times, losses = [], []
    for _ in range(options.steps + 3):
        tokens = torch.randint(0, VOCABULARY, (micro_batch, options.seq_length + 1), device="cuda")
        torch.cuda.synchronize()
        begin = time.perf_counter()
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        for master, p in zip(masters, parameters):
            master.grad = p.grad.float()
            p.grad = None
        nn.utils.clip_grad_norm_(masters, 1.0, foreach=True)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(parameters, masters)
        losses.append(loss.item())
        times.append(time.perf_counter() - begin)
    return times[3:], losses, sum(p.numel() for p in parameters)


def step():
    micro_batch, tried = options.micro_batch_size, []
    while True:
        try:
            times, losses, parameters = train(micro_batch)
            break
        except torch.cuda.OutOfMemoryError:
            tried.append(micro_batch)
            if micro_batch == 1:
                raise
            micro_batch //= 2
        torch.cuda.empty_cache()  # outside the handler, which holds the failed step's tensors
    median = statistics.median(times)
    return [dict(micro_batch_size=micro_batch, did_not_fit=tried, seq_length=options.seq_length, parameters=parameters,
                 step_ms=median * 1e3, tokens_per_second=micro_batch * options.seq_length / median, loss_first=losses[0],
                 loss_last=losses[-1], memory_gb=torch.cuda.max_memory_allocated() / 1e9)]


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    result = dict(torch=torch.__version__, device=torch.cuda.get_device_name(0), quick=options.quick, sections={})
    for name in SECTIONS:
        if options.section not in ("all", name):
            continue
        try:
            result["sections"][name] = dict(rows=globals()[name]())
        except Exception as error:  # whatever it is, the other sections are still worth having
            result["sections"][name] = dict(rows=[], error=f"{type(error).__name__}: {str(error).strip()[:500]}")
        torch.cuda.empty_cache()
    finish(options, result)


if __name__ == "__main__":
    main()
