// SPDX-License-Identifier: Apache-2.0
// ONNX files back into modules: the same numbers, a training step, and files that are damaged.
#ifdef XY_WITH_ONNX
#include "models/export/decoder.h"
#include "models/export/import/import.h"
#include "models/nn/layers.h"
#include "models/zoo/zoo.h"
#include "ops/quant/quant.h"
#include "tests/models/export_helpers.h"

namespace xylem {
namespace {

using namespace export_tests;

struct Case {
  std::string name;
  zoo::Options options;
  Tensor input;
  int opset;
};
std::vector<Case> cases() {
  const zoo::Options text{{"vocab", int64_t(17)},
                          {"context", int64_t(16)},
                          {"layers", int64_t(1)},
                          {"heads", int64_t(2)},
                          {"width", int64_t(8)}};
  zoo::Options llama = text;
  llama.insert({{"kv_heads", int64_t(1)}, {"hidden", int64_t(12)}});
  Tensor tokens = sample_index({2, 5}, 17);
  return {{"mlp", {{"in", int64_t(12)}, {"hidden", int64_t(8)}}, floats({3, 12}), 17},
          {"resnet_small", {{"width", int64_t(4)}, {"stages", int64_t(2)}}, floats({2, 1, 8, 8}), 13},
          {"unet", {{"width", int64_t(4)}, {"depth", int64_t(1)}, {"bilinear", true}}, floats({2, 3, 4, 4}), 17},
          {"vit",
           {{"image", int64_t(8)},
            {"patch", int64_t(4)},
            {"layers", int64_t(1)},
            {"heads", int64_t(2)},
            {"width", int64_t(8)},
            {"classes", int64_t(5)}},
           floats({2, 3, 8, 8}),
           20},
          {"gpt2", text, tokens, 13},
          {"gpt2", text, tokens, 23},
          {"llama", llama, tokens, 17}};
}

TEST(Import, RoundTripGivesTheSameNumbersAndTrains) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name + " at opset " + std::to_string(c.opset));
    auto model = zoo::create(c.name, c.options);
    model->eval();
    const std::string file = temporary("round.onnx");
    std::map<int, std::string> dynamic{{0, "batch"}};
    if (!is_float(c.input.dtype())) dynamic[1] = "seq";
    export_onnx(*model, {{"x", c.input, dynamic}}, file, {.opset = c.opset});
    OnnxModule back = import_onnx(file);
    EXPECT_EQ(back.input_names(), std::vector<std::string>{"x"});
    EXPECT_EQ(back.opset(), c.opset);
    EXPECT_EQ(back.metadata("xylem.profile"), "exact");
    Tensor expected = no_grad([&] { return (*model)(c.input); });
    EXPECT_LE(distance(no_grad([&] { return back(c.input); }), expected), 1e-5);
    // Folded norms and their statistics are gone; every other weight is trained.
    EXPECT_GT(back.num_parameters(), model->num_parameters() * 9 / 10);
    auto loss = [&] { return mean(pow(back(c.input), 2.0)); };
    Tensor before = loss();
    before.backward();
    double squares = 0;
    for (const NamedTensor& p : back.parameters()) {
      ASSERT_TRUE(p.tensor.grad().defined()) << p.name;
      squares += sum(pow(p.tensor.grad(), 2.0)).item();
    }
    EXPECT_GT(squares, 0);
    const double step = 0.02 * before.item() / squares;
    for (const NamedTensor& p : back.parameters()) p.tensor.detach().add_(p.tensor.grad(), -step);
    EXPECT_LT(no_grad(loss).item(), before.item());
  }
}

struct Quantized : Module {
  Linear fc{6, 4};
  XY_MEMBERS(fc)
  Tensor operator()(const Tensor& x) const {
    Tensor scale = abs_max(fc.weight.detach(), 0) * (1.0 / 127);
    return linear(fake_quantize(x, full({1}, 0.02)), fake_quantize(fc.weight, scale, {.axis = 0, .low = -127}),
                  fc.bias);
  }
};

TEST(Import, QuantizedModelsKeepTheirLevelsAndTrain) {
  Quantized net;
  Tensor x = floats({5, 6}, 3);
  Tensor expected = no_grad([&] { return net(x); });
  for (Profile p : {Profile::exact, Profile::trt10, Profile::ort_cpu}) {
    SCOPED_TRACE(name_of(p));
    const std::string file = temporary("quantized.onnx");
    export_onnx(net, {{"x", x, {{0, "batch"}}}}, file, {.profile = p, .precision = ExportPrecision::fp32});
    OnnxModule back = import_onnx(file);
    EXPECT_LE(distance(no_grad([&] { return back(x); }), expected), 1e-5);
    EXPECT_EQ(back.parameters().size(), 2u);
    mean(pow(back(x), 2.0)).backward();
    for (const NamedTensor& t : back.parameters()) EXPECT_GT(sum(pow(t.tensor.grad(), 2.0)).item(), 0) << t.name;
    // And out again.
    const std::string again = temporary("again.onnx");
    export_onnx(back, {{"x", x, {{0, "batch"}}}}, again);
    OnnxModule twice = import_onnx(again);
    EXPECT_LE(distance(no_grad([&] { return twice(x); }), expected), 1e-5);
  }
}

TEST(Import, SaysWhatItDoesNotKnow) {
  Quantized net;
  const std::string file = temporary("unknown.onnx");
  export_onnx(net, {{"x", floats({2, 6})}}, file);
  exporting::OnnxGraph g = exporting::read_graph(file);
  g.nodes.back().op = "Frobnicate";
  exporting::write_graph(g, file, false, 1 << 30);
  try {
    import_onnx(file);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("Frobnicate"), std::string::npos) << e.what();
  }
  EXPECT_THROW(import_onnx(temporary("absent.onnx")), Error);
}

// Bytes changed, cut or repeated at random: an error, or a module that runs or fails with an error.
TEST(Import, DamagedFilesNeverCrash) {
  auto model = zoo::create("resnet_small", {{"width", int64_t(2)}, {"stages", int64_t(1)}});
  const std::string file = temporary("whole.onnx"), damaged = temporary("damaged.onnx");
  export_onnx(*model, {{"x", floats({1, 1, 4, 4}), {{0, "batch"}}}}, file);
  std::ifstream in(file, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  Tensor x = floats({1, 1, 4, 4});
  int refused = 0, ran = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    std::string bytes = whole;
    auto pick = [&](uint64_t k, size_t bound) {
      return size_t(sample_index({1}, int64_t(bound), seed * 16 + k).item());
    };
    for (uint64_t k = 0; k < 1 + seed % 4; ++k) bytes[pick(k, bytes.size())] = char(pick(k + 8, 256));
    if (seed % 10 == 0) bytes.resize(pick(15, bytes.size()));
    std::ofstream(damaged, std::ios::binary) << bytes;
    try {
      OnnxModule m = import_onnx(damaged);
      NoGrad guard;
      if (m.input_names().size() == 1) m(x);
      ++ran;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 20);
  EXPECT_GT(ran, 20);
}

// Each node and initializer of a good model changed in one way.
void mutate(const std::string& file, const Tensors& x) {
  const std::string changed = temporary("changed.onnx");
  const exporting::OnnxGraph good = exporting::read_graph(file);
  {
    NoGrad guard;
    ASSERT_NO_THROW(import_onnx(file)(x));
  }
  auto attempt = [&](const exporting::OnnxGraph& g) {
    exporting::write_graph(g, changed, false, 1 << 30);
    try {
      OnnxModule m = import_onnx(changed);
      NoGrad guard;
      m(x);
    } catch (const Error&) {
    }
  };
  for (size_t i = 0; i < good.nodes.size(); ++i) {
    exporting::OnnxGraph g = good;
    g.nodes[i].inputs.clear();
    attempt(g);
    g = good;
    std::reverse(g.nodes[i].inputs.begin(), g.nodes[i].inputs.end());
    attempt(g);
    g = good;
    for (auto& [name, value] : g.nodes[i].attrs) {
      if (auto* v = std::get_if<int64_t>(&value)) *v = -77;
      if (auto* v = std::get_if<std::vector<int64_t>>(&value)) v->assign(v->size() + 1, 1 << 20);
    }
    attempt(g);
  }
  for (const auto& [name, t] : good.initializers) {
    exporting::OnnxGraph g = good;
    OnnxTensor& changed_tensor = g.initializers[name];
    if (t.type == exporting::type::int64)
      changed_tensor.data = full(t.data.shape(), -3e15, i64);
    else if (t.dims.size() > 0 && t.dims[0] > 1) {
      changed_tensor.dims[0] -= 1;
      changed_tensor.data = t.data.narrow(0, 0, t.dims[0] - 1).contiguous();
    }
    attempt(g);
  }
}

TEST(Import, MutatedGraphsNeverCrash) {
  const std::string file = temporary("good.onnx");
  export_onnx(*zoo::create("vit", cases()[3].options), {{"x", floats({1, 3, 8, 8}), {{0, "batch"}}}}, file);
  mutate(file, {floats({1, 3, 8, 8})});
  // Group norms, rotary positions, attention and caches that are written in place.
  Module nothing;
  auto norm = [](const Tensors& in) -> Tensors { return {group_norm(in[0], 2, floats({4}), floats({4}))}; };
  export_onnx(nothing, norm, {{"x", floats({1, 4, 3, 3}), {{0, "batch"}}}}, file, {.opset = 24});
  mutate(file, {floats({1, 4, 3, 3})});
  auto model = zoo::create("llama", cases()[6].options);
  for (int opset : {17, 24}) {
    export_decoder(dynamic_cast<LanguageModel&>(*model), file,
                   {.cache = CacheKind::fixed, .max_length = 6, .onnx = {.opset = opset}});
    Tensors x;
    for (const std::string& name : import_onnx(file).input_names())
      x.push_back(name == "input_ids"      ? sample_index({2, 3}, 17)
                  : name == "position_ids" ? arange(3).reshape({1, 3}).expand({2, 3}).contiguous()
                                           : zeros({2, 1, 6, 4}));
    mutate(file, x);
  }
}

}  // namespace
}  // namespace xylem
#endif
