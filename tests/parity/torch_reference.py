#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What PyTorch computes: weights, a batch, the gradients of the first step, the losses of ten optimizer steps and the
parameters after them, for GPT-2 (4 layers) and ResNet-18 in fp32 and bf16. parity.cpp compares Xylem with it.

  torch_reference.py OUT_FOLDER [cpu|cuda]

bf16 means bf16 weights and activations, norms computed in fp32, and an optimizer that keeps fp32 masters.
"""
import copy
import ctypes
import json
import os
import struct
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = 10
TYPES = {torch.float32: "F32", torch.int64: "I64"}


def save(path, tensors, metadata):
    """Writes a safetensors file."""
    tensors = {name: t.detach().to("cpu").contiguous() for name, t in tensors.items()}
    header, position = {"__metadata__": metadata}, 0
    for name, t in sorted(tensors.items(), key=lambda item: -item[1].element_size()):
        size = t.numel() * t.element_size()
        header[name] = {"dtype": TYPES[t.dtype], "shape": list(t.shape), "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)))
        out.write(text)
        for name in header:
            if name != "__metadata__":
                t = tensors[name]
                out.write(ctypes.string_at(t.data_ptr(), t.numel() * t.element_size()))


class LayerNorm(nn.LayerNorm):
    def forward(self, x):
        return F.layer_norm(x.float(), self.normalized_shape, self.weight, self.bias, self.eps).to(x.dtype)


class BatchNorm(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x.float()).to(x.dtype)


class Conv1D(nn.Module):
    """Hugging Face's linear layer: the weight is [in, out]."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x):
        return F.linear(x, self.weight.t(), self.bias)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.c_attn, self.c_proj, self.heads = Conv1D(width, 3 * width), Conv1D(width, width), heads

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.c_attn(x).split(width, 2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(2, 3) / (width // self.heads) ** 0.5
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
            y = scores.masked_fill(~mask, float("-inf")).softmax(3) @ v
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(width, 4 * width), Conv1D(4 * width, width)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = LayerNorm(width), Attention(width, heads), LayerNorm(width), Mlp(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    def __init__(self, vocab, context, layers, heads, width):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.h = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.ln_f = LayerNorm(width)


class GPT2(nn.Module):
    def __init__(self, **config):
        super().__init__()
        self.transformer = Transformer(**config)

    def forward(self, tokens):
        t = self.transformer
        x = t.wte(tokens) + t.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in t.h:
            x = block(x)
        return F.linear(t.ln_f(x), t.wte.weight)

    def loss(self, tokens, targets):
        logits = self(tokens)
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.view(-1))


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), BatchNorm(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), BatchNorm(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), BatchNorm(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), BatchNorm(64)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        self.fc = nn.Linear(512, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x.to(self.conv1.weight.dtype)))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))

    def loss(self, images, labels):
        return F.cross_entropy(self(images).float(), labels)


def is_norm(module):
    return isinstance(module, (LayerNorm, BatchNorm))


def initialise(model, stddev):
    """Random weights that bf16 holds exactly; gains about 1 and biases about 0, so that no gradient is special."""
    norms = {id(p) for m in model.modules() if is_norm(m) for p in [m.weight]}
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.normal_(1.0 if id(p) in norms else 0.0, 0.1 if id(p) in norms else 0.02)
            else:
                fan_in = p.shape[1] * p.shape[2] * p.shape[3] if p.dim() == 4 else 0
                p.normal_(0.0, (2.0 / fan_in) ** 0.5 if fan_in else stddev)
            p.copy_(p.bfloat16().float())


def run(model, precision, make_optimizer, batch):
    """Ten steps from the model's weights; returns what parity.cpp compares."""
    masters = {name: nn.Parameter(p.detach().clone()) for name, p in model.named_parameters()}
    if precision == "bf16":
        model.to(torch.bfloat16)
        for m in model.modules():
            if is_norm(m):
                m.float()
    model.train()
    optimizer = make_optimizer([p for p in masters.values() if p.dim() > 1], [p for p in masters.values() if p.dim() == 1])
    result, losses = {}, []
    for step in range(STEPS):
        for p in model.parameters():
            p.grad = None
        loss = model.loss(*batch)
        loss.backward()
        losses.append(loss.detach().float().reshape(1))
        for name, p in model.named_parameters():
            masters[name].grad = p.grad.detach().float()
            if step == 0:
                result["grad." + name] = masters[name].grad.clone()
        optimizer.step()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(masters[name])
    result["losses"] = torch.cat(losses)
    for name, p in masters.items():
        result["param." + name] = p
    for name, b in model.named_buffers():
        if not name.endswith("num_batches_tracked"):
            result["buffer." + name] = b.float()
    return result


def smallest_at_relu(model, batch):
    """The smallest |x| that any ReLU meets, in fp64 (infinity without ReLUs)."""
    smallest, relu = [float("inf")], F.relu

    def watched(x):
        smallest.append(x.detach().abs().min().item())
        return relu(x)

    F.relu = watched
    double = build_double(model)
    with torch.no_grad():
        double.loss(*[t.double() if t.is_floating_point() else t for t in batch])
    F.relu = relu
    return min(smallest)


def build_double(model):
    double = copy.deepcopy(model).double()
    for m in double.modules():
        if is_norm(m):
            m.forward = type(m).__bases__[0].forward.__get__(m)  # without the detour over fp32
    return double


def write(folder, build, config, stddev, make_optimizer, batch, device):
    os.makedirs(folder, exist_ok=True)
    model = build()
    # A ReLU input within fp32's rounding of zero makes the gradient a matter of luck on either side: draw again.
    for _ in range(100):
        initialise(model, stddev)
        if smallest_at_relu(model, batch) > 4e-6:
            break
    else:
        sys.exit("torch_reference: no weights found whose ReLUs stay clear of zero")
    start = {name: t.clone() for name, t in model.state_dict().items()}
    metadata = {key: str(value) for key, value in config.items()}
    metadata.update(format="pt", torch=torch.__version__, device=device)
    save(os.path.join(folder, "weights.safetensors"), start, metadata)
    save(os.path.join(folder, "batch.safetensors"), {"input": batch[0], "target": batch[1]}, {})
    for precision in ("fp32", "bf16"):
        model = build()
        model.load_state_dict(start)
        model.to(device)
        result = run(model, precision, make_optimizer, [t.to(device) for t in batch])
        save(os.path.join(folder, precision + ".safetensors"), result, {})
        print(os.path.basename(folder), precision, "losses", " ".join("%.5f" % v for v in result["losses"].tolist()))


def main():
    out = sys.argv[1]
    device = sys.argv[2] if len(sys.argv) > 2 else "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    torch.manual_seed(1)

    gpt2 = dict(vocab=512, context=64, layers=4, heads=4, width=128)
    tokens = torch.randint(gpt2["vocab"], (8, 65))
    adamw = dict(lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-6, weight_decay=0.1)
    write(os.path.join(out, "gpt2"), lambda: GPT2(**gpt2), dict(gpt2, **adamw), 0.05,
          lambda decayed, plain: torch.optim.AdamW(
              [{"params": decayed, "weight_decay": adamw["weight_decay"]}, {"params": plain, "weight_decay": 0.0}],
              lr=adamw["lr"], betas=(adamw["beta1"], adamw["beta2"]), eps=adamw["eps"]),
          [tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()], device)

    # A learning rate small enough that ten steps stay in one piece of this piecewise smooth function.
    sgd = dict(lr=1e-3, momentum=0.9, weight_decay=5e-4)
    write(os.path.join(out, "resnet18"), lambda: ResNet18(10), dict(classes=10, **sgd), 0.05,
          lambda decayed, plain: torch.optim.SGD(
              [{"params": decayed, "weight_decay": sgd["weight_decay"]}, {"params": plain, "weight_decay": 0.0}],
              lr=sgd["lr"], momentum=sgd["momentum"], nesterov=True),
          [torch.randn(8, 3, 32, 32), torch.randint(10, (8,))], device)


if __name__ == "__main__":
    main()
