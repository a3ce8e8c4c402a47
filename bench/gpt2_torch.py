#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peer of bench/gpt2_train.cpp: GPT-2 124M in PyTorch with torch.compile, bf16 autocast, cuDNN attention and fused
AdamW. Prints one JSON object.   gpt2_torch.py [batch] [sequence] [steps]"""
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

start = time.perf_counter()
batch, sequence, steps = (int(sys.argv[i]) if len(sys.argv) > i else d for i, d in ((1, 32), (2, 1024), (3, 30)))
WIDTH, HEADS, LAYERS, VOCAB, WARMUP = 768, 12, 12, 50304, 5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = (t.view(b, s, HEADS, -1).transpose(1, 2) for t in self.qkv(self.ln_1(x)).split(WIDTH, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, s, WIDTH))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(1024, WIDTH)
        self.blocks, self.ln_f = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, VOCAB).float(), targets.reshape(-1))


torch.manual_seed(1)
torch.set_float32_matmul_precision("high")
model = Gpt2().cuda()
decays = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() == 1]
optimizer = torch.optim.AdamW(
    [{"params": decays, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=6e-4, betas=(0.9, 0.95), fused=True)
compiled = torch.compile(model)
data = torch.randint(0, 50257, (batch, sequence + 1), device="cuda")
times, first_step = [], 0.0
with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
    for step in range(WARMUP + steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(data[:, :-1], data[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        torch.cuda.synchronize()
        if step >= WARMUP:
            times.append(time.perf_counter() - begin)
        if step == 0:
            first_step = time.perf_counter() - start
median = statistics.median(times)
print(json.dumps({
    "model": "gpt2-124m", "peer": f"torch {torch.__version__} compile", "dtype": "bf16 autocast", "batch": batch,
    "sequence": sequence, "steps": steps, "median_ms": round(median * 1e3, 3), "min_ms": round(min(times) * 1e3, 3),
    "max_ms": round(max(times) * 1e3, 3), "tokens_per_s": round(batch * sequence / median),
    "first_step_s": round(first_step, 2), "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2)}))
