// SPDX-License-Identifier: Apache-2.0
// The arithmetic and the bytes of the models that the step model knows.
#include "core/util/check.h"
#include "distributed/plan/step_model.h"
#include "distributed/topology/gpu_model.h"

namespace xylem {

double ConvNet::Layer::forward_flops() const {
  return 2 * double(in * out * kernel * kernel) * double(out_size() * out_size());
}

// Every operation reads and writes whole images, and nothing is fused. A batch normalization moves 3 times its elements
// forward and 5 times backward, a ReLU 2 (in place) and 3, an addition 3, its gradient's sum 3, pooling 3 times what it
// reads and writes. Kept are the convolutions' and the ReLUs' outputs and the image.
ModelShape resnet_shape(const std::string& name, const ResNetShape& r) {
  XY_CHECK(r.image >= 8 && !r.blocks.empty(), "a ResNet needs stages and images of 8 x 8 and more");
  ConvNet net{.classes = r.classes};
  double relus = 0, sums = 0, pooled = 0;
  int64_t size = r.image, in = r.width;
  auto convolve = [&](int64_t from, int64_t to, int64_t kernel, int64_t stride, int64_t edge) {
    net.layers.push_back({from, to, kernel, stride, edge});
    return double(to * net.layers.back().out_size() * net.layers.back().out_size());
  };
  relus += convolve(r.channels, r.width, r.small_images ? 3 : 7, r.small_images ? 1 : 2, size);
  if (!r.small_images) {
    size = (size + 1) / 2;
    pooled = double(r.width * size * size);
    size = (size + 1) / 2;
    net.kept += double(r.width * size * size);
    pooled += double(r.width * size * size);
  }
  for (size_t stage = 0; stage < r.blocks.size(); ++stage) {
    const int64_t width = r.width << stage, out = r.bottleneck ? 4 * width : width;
    for (int64_t i = 0; i < r.blocks[stage]; ++i) {
      const int64_t stride = i == 0 && stage > 0 ? 2 : 1, half = (size + stride - 1) / stride;
      if (r.bottleneck) {
        relus += convolve(in, width, 1, 1, size) + convolve(width, width, 3, stride, size);
        convolve(width, out, 1, 1, half);
      } else {
        relus += convolve(in, width, 3, stride, size);
        convolve(width, width, 3, 1, half);
      }
      if (stride != 1 || in != out) convolve(in, out, 1, stride, size);
      relus += double(out * half * half);
      sums += double(out * half * half);
      in = out;
      size = half;
    }
  }
  net.features = in;
  double outputs = 0;
  for (const ConvNet::Layer& l : net.layers) outputs += double(l.out * l.out_size() * l.out_size());
  net.moved = 8 * outputs + 5 * relus + 6 * sums + 3 * pooled;
  net.kept += outputs + relus + double(r.channels * r.image * r.image);
  return {.name = name, .layers = 1, .heads = 1, .kv_heads = 1, .context = 1, .images = net};
}

int64_t ModelShape::kv_width() const { return width / heads * kv_heads; }
int64_t ModelShape::block_parameters() const {
  return 2 * width * width + 2 * width * kv_width() + (gated ? 3 : 2) * width * hidden;
}
int64_t ModelShape::parameters() const {
  if (images) {
    int64_t n = images->classes * (images->features + 1);
    for (const ConvNet::Layer& l : images->layers) n += l.out * (l.in * l.kernel * l.kernel + 2);
    return n;
  }
  int64_t norms = (gated ? 1 : 2) * width * (2 * layers + 1), biases = gated ? 0 : (5 * width + hidden) * layers;
  return layers * block_parameters() + norms + biases + (tied ? 1 : 2) * vocab * width +
         (learned_positions ? context * width : 0);
}
double ModelShape::forward_flops(int64_t sequence) const {
  if (images) {
    double n = 2 * double(images->features * images->classes);
    for (const ConvNet::Layer& l : images->layers) n += l.forward_flops();
    return n;
  }
  return 2 * double(layers * block_parameters() + width * vocab) + 7.0 / 3 * double(sequence * width * layers);
}

GpuSpec gpu_spec(const std::string& name) {
  const GpuModel* model = find_gpu_model(name);
  return model ? GpuSpec{name, 0, model->memory_gb * 1e9, model->memory_gbps} : GpuSpec{.name = name};
}

std::optional<ModelShape> known_model(const std::string& name) {
  auto gpt2 = [&](int64_t layers, int64_t width, int64_t heads) {
    return ModelShape{name, layers, width, heads, heads, 4 * width, 50257, 1024, false, true, true};
  };
  auto llama = [&](int64_t layers, int64_t width, int64_t heads, int64_t kv, int64_t hidden, int64_t vocab, bool tied) {
    return ModelShape{name, layers, width, heads, kv, hidden, vocab, 8192, true, tied, false};
  };
  if (name == "gpt2-124m") return gpt2(12, 768, 12);
  if (name == "gpt2-355m") return gpt2(24, 1024, 16);
  if (name == "gpt2-774m") return gpt2(36, 1280, 20);
  if (name == "gpt2-1.5b") return gpt2(48, 1600, 25);
  if (name == "llama-1b") return llama(16, 2048, 32, 8, 8192, 128256, true);
  if (name == "llama-7b") return llama(32, 4096, 32, 32, 11008, 32000, false);
  if (name == "llama-8b") return llama(32, 4096, 32, 8, 14336, 128256, false);
  if (name == "llama-70b") return llama(80, 8192, 64, 8, 28672, 128256, false);
  if (name == "resnet18") return resnet_shape(name, {.blocks = {2, 2, 2, 2}});
  if (name == "resnet50") return resnet_shape(name, {.blocks = {3, 4, 6, 3}, .bottleneck = true});
  return std::nullopt;
}

}  // namespace xylem
