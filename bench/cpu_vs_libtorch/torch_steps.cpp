// SPDX-License-Identifier: Apache-2.0
// The same workloads in libtorch.
#include <torch/torch.h>

#include "bench/cpu_vs_libtorch/steps.h"

namespace {

namespace nn = torch::nn;
using torch::Tensor;

struct BlockImpl : nn::Module {
  nn::LayerNorm ln_1, ln_2;
  nn::Linear qkv, proj, fc, out;
  int64_t heads;
  BlockImpl(int64_t width, int64_t heads)
      : ln_1(nn::LayerNormOptions({width})),
        ln_2(nn::LayerNormOptions({width})),
        qkv(width, 3 * width),
        proj(width, width),
        fc(width, 4 * width),
        out(4 * width, width),
        heads(heads) {
    register_module("ln_1", ln_1);
    register_module("ln_2", ln_2);
    register_module("qkv", qkv);
    register_module("proj", proj);
    register_module("fc", fc);
    register_module("out", out);
  }
  Tensor forward(Tensor x, const Tensor& mask) {
    int64_t b = x.size(0), s = x.size(1), w = x.size(2);
    auto parts = qkv(ln_1(x)).view({b, s, 3, heads, w / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    Tensor scores = torch::matmul(parts[0], parts[1].transpose(-2, -1)) * (1 / std::sqrt(double(w / heads)));
    Tensor mixed = torch::matmul(torch::softmax(scores + mask, -1), parts[2]);
    x = x + proj(mixed.transpose(1, 2).reshape({b, s, w}));
    return x + out(torch::gelu(fc(ln_2(x)), "tanh"));
  }
};
TORCH_MODULE(Block);

struct GptModel : nn::Module {
  nn::Embedding wte, wpe;
  std::vector<Block> blocks;
  nn::LayerNorm ln_f;
  Tensor mask;
  explicit GptModel(const Gpt& c)
      : wte(c.vocab, c.width), wpe(c.sequence, c.width), ln_f(nn::LayerNormOptions({c.width})) {
    register_module("wte", wte);
    register_module("wpe", wpe);
    register_module("ln_f", ln_f);
    for (int64_t i = 0; i < c.layers; ++i)
      blocks.push_back(register_module("h" + std::to_string(i), Block(c.width, c.heads)));
    torch::NoGradGuard guard;
    for (auto& p : parameters())
      if (p.dim() == 2) p.normal_(0, 0.02);
    mask = torch::full({c.sequence, c.sequence}, -INFINITY).triu(1);
  }
  Tensor loss(const Tensor& tokens, const Tensor& targets) {
    Tensor x = wte(tokens) + wpe->weight;
    for (auto& block : blocks) x = block(x, mask);
    Tensor logits = torch::matmul(ln_f(x), wte->weight.t());
    return nn::functional::cross_entropy(logits.flatten(0, 1), targets.flatten());
  }
};

nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

struct ResidualImpl : nn::Module {
  nn::Conv2d conv1, conv2, down{nullptr};
  nn::BatchNorm2d bn1, bn2, down_bn{nullptr};
  ResidualImpl(int64_t in, int64_t out, int64_t stride)
      : conv1(conv(in, out, 3, stride)), conv2(conv(out, out, 3, 1)), bn1(out), bn2(out) {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("bn1", bn1);
    register_module("bn2", bn2);
    if (in == out && stride == 1) return;
    down = register_module("down", conv(in, out, 1, stride));
    down_bn = register_module("down_bn", nn::BatchNorm2d(out));
  }
  Tensor forward(const Tensor& x) {
    Tensor y = bn2(conv2(torch::relu(bn1(conv1(x)))));
    return torch::relu(y + (down.is_empty() ? x : down_bn(down(x))));
  }
};
TORCH_MODULE(Residual);

struct CnnModel : nn::Module {
  nn::Conv2d stem;
  nn::BatchNorm2d bn;
  nn::Sequential blocks;
  nn::Linear fc;
  explicit CnnModel(const Cnn& c)
      : stem(conv(1, c.width, 3, 1)), bn(c.width), fc(c.width << (c.stages - 1), c.classes) {
    register_module("stem", stem);
    register_module("bn", bn);
    for (int64_t s = 0, in = c.width; s < c.stages; ++s)
      for (int64_t i = 0; i < c.blocks; ++i) {
        blocks->push_back(Residual(in, c.width << s, s > 0 && i == 0 ? 2 : 1));
        in = c.width << s;
      }
    register_module("blocks", blocks);
    register_module("fc", fc);
  }
  Tensor loss(const Tensor& images, const Tensor& labels) {
    Tensor x = blocks->forward(torch::relu(bn(stem(images))));
    return nn::functional::cross_entropy(fc(x.mean({2, 3})), labels);
  }
};

template <class Model>
void train(Model& model, const Tensor& input, const Tensor& target, int steps) {
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-3).weight_decay(0.1));
  time_steps(steps, [&] {
    Tensor loss = model.loss(input, target);
    optimizer.zero_grad();
    loss.backward();
    nn::utils::clip_grad_norm_(model.parameters(), 1.0);
    optimizer.step();
    return loss.template item<double>();
  });
}

void gpt(const Gpt& c, int steps) {
  torch::manual_seed(1);
  GptModel model(c);
  Tensor tokens = torch::randint(c.vocab, {c.batch, c.sequence + 1}, torch::kLong);
  train(model, tokens.slice(1, 0, c.sequence).contiguous(), tokens.slice(1, 1).contiguous(), steps);
}

void cnn(const Cnn& c, int steps) {
  torch::manual_seed(1);
  CnnModel model(c);
  train(model, torch::randn({c.batch, 1, 28, 28}), torch::randint(c.classes, {c.batch}, torch::kLong), steps);
}

}  // namespace

int main(int argc, char** argv) { return run_steps(argc, argv, gpt, cnn); }
