#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peer of bench/scaling.cpp: PyTorch DDP with torch.compile on the GPUs of one machine, random data.
torchrun --nproc-per-node N scaling_torch.py [--turns] MODEL [batch per GPU] [steps]
MODEL: gpt2-124m, gpt2-1.5b, llama-1b or resnet50. Rank 0 prints one JSON object; with --turns (one process) it prints
"ready" once it has warmed up, and an object for every line on standard input."""
import contextlib
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

turns = "--turns" in sys.argv
words = [w for w in sys.argv[1:] if w != "--turns"]
name = words[0]
batch = int(words[1]) if len(words) > 1 else {"gpt2-124m": 64, "gpt2-1.5b": 8, "llama-1b": 4, "resnet50": 256}[name]
steps = int(words[2]) if len(words) > 2 else 20
WARMUP = 5
SEQUENCE, VOCAB = (4096, 128256) if name == "llama-1b" else (1024, 50304)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, s, w = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.ln_1(x)).split(w, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, s, w))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, layers, heads, width):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, width), nn.Embedding(SEQUENCE, width)
        self.blocks, self.ln_f = nn.ModuleList(Block(width, heads) for _ in range(layers)), nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


class LlamaLayer(nn.Module):
    def __init__(self, width, heads, kv_heads, hidden):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.size, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.gate_up, self.down = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(self, x, cosine, sine):
        b, s, w = x.shape
        parts = self.qkv(self.norm_1(x)).view(b, s, -1, self.size).transpose(1, 2)
        q, k, v = parts.split([self.heads, self.kv_heads, self.kv_heads], dim=1)

        def turn(t):
            a, c = t.chunk(2, dim=-1)
            return t * cosine + torch.cat((-c, a), dim=-1) * sine

        y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True, enable_gqa=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, s, w))
        gate, up = self.gate_up(self.norm_2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, layers=16, heads=32, kv_heads=8, width=2048, hidden=8192):
        super().__init__()
        self.embed, self.norm = nn.Embedding(VOCAB, width), nn.RMSNorm(width, eps=1e-5)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, kv_heads, hidden) for _ in range(layers))
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
        size = width // heads
        angles = torch.outer(torch.arange(SEQUENCE), 10000 ** (-torch.arange(0, size, 2) / size)).repeat(1, 2)
        self.register_buffer("cosine", angles.cos().bfloat16())
        self.register_buffer("sine", angles.sin().bfloat16())

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine)
        return F.linear(self.norm(x), self.embed.weight)


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        out = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        self.skip = None
        if stride != 1 or channels != out:
            self.skip = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(y)))))
        return F.relu(y + (self.skip(x) if self.skip else x))


def resnet50():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for i in range(blocks):
            layers.append(Bottleneck(channels, 64 << stage, 2 if i == 0 and stage > 0 else 1))
            channels = 4 * (64 << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
if world > 1:
    dist.init_process_group("nccl")
torch.manual_seed(1)
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.benchmark = True
image = name == "resnet50"
if image:
    model = resnet50().cuda().to(memory_format=torch.channels_last)
    x = torch.randn(batch, 3, 224, 224, device="cuda").contiguous(memory_format=torch.channels_last)
    target = torch.randint(0, 1000, (batch,), device="cuda")
else:
    widths = {"gpt2-124m": (12, 12, 768), "gpt2-1.5b": (48, 25, 1600)}
    model = (Llama() if name == "llama-1b" else Gpt2(*widths[name])).cuda()
    tokens = torch.randint(0, 50257, (batch, SEQUENCE + 1), device="cuda")
    x, target = tokens[:, :-1], tokens[:, 1:].reshape(-1)
if world > 1:
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
decays = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() == 1]
optimizer = torch.optim.AdamW(
    [{"params": decays, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=6e-4, betas=(0.9, 0.95), fused=True)
compiled = torch.compile(model)


def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(compiled(x).flatten(0, -2).float(), target)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def timed():
    torch.cuda.synchronize()
    if world > 1:
        dist.barrier()
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def report():
    times = [timed() for _ in range(steps)]
    median = statistics.median(times)
    if rank != 0:
        return
    print(json.dumps({
        "model": name, "peer": f"torch {torch.__version__} DDP compile", "ranks": world, "batch_per_gpu": batch,
        "median_ms": round(median * 1e3, 3), "min_ms": round(min(times) * 1e3, 3), "max_ms": round(max(times) * 1e3, 3),
        "units_per_s": round(world * batch * (1 if image else SEQUENCE) / median),
        "unit": "images" if image else "tokens", "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2)}),
        flush=True)


with contextlib.nullcontext() if image else sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
    for _ in range(WARMUP):
        timed()
    if turns:
        print("ready", flush=True)
        for _ in sys.stdin:
            report()
    else:
        report()
if world > 1:
    dist.destroy_process_group()
