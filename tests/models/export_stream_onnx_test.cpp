// SPDX-License-Identifier: Apache-2.0
// Models that several processes have saved are exported without ever being whole in memory.
#include <atomic>

#include "core/device/allocator.h"
#include "models/checkpoint/writer.h"
#include "models/export/bundle/bundle.h"
#include "models/nn/init.h"
#include "models/nn/lazy.h"
#include "models/quantize/quantize.h"
#include "models/train/task.h"
#include "models/train/trained.h"
#include "tests/models/export_helpers.h"

namespace xylem {
namespace {

TEST(Lazy, ValuesComeWhenTheyAreReadAndGo) {
  int made = 0;
  Tensor t = lazy_tensor({3, 4}, f32, [&] {
    ++made;
    return arange(12, f32).reshape({3, 4});
  });
  Tensor turned = lazy_tensor({4, 3}, f32, [t] { return t.transpose(0, 1).contiguous(); });
  EXPECT_EQ(made, 0);
  EXPECT_EQ(turned.shape(), Shape({4, 3}));
  EXPECT_EQ(turned.to_vector<int>(), (std::vector<int>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  EXPECT_EQ(t.select(0, 1).to_vector<int>(), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(made, 1);
  forget_lazy_values();
  EXPECT_EQ(t.to_vector<int>()[11], 11);
  EXPECT_EQ(made, 2);
  {
    LazyScope scope;
    EXPECT_EQ(sum(t * 2).item(), 132);  // t * 2 reads it, and forgets what was read before too
    EXPECT_EQ(sum(t).item(), 66);
    EXPECT_EQ(made, 3);
  }
  Tensor wrong = lazy_tensor({2}, f32, [] { return zeros({3}); });
  EXPECT_THROW(wrong.to_vector<int>(), Error);
}

TEST(Lazy, NoObserverSeesHowValuesAreMade) {
  struct Counter : OpObserver {
    int ops = 0;
    void on_op(const OpSpec&, std::span<const Tensor>, std::span<const Tensor>, const Attrs&) override { ++ops; }
  } counter;
  Tensor t = lazy_tensor({4}, f32, [] { return arange(4, f32) + 1; });
  Tensor twice = t * 2;
  EXPECT_EQ(counter.ops, 1);
  EXPECT_EQ(twice.to_vector<int>(), (std::vector<int>{2, 4, 6, 8}));
}

TEST(Lazy, ModulesOfShapesTakeNoMemory) {
  allocator(Device::cpu()).reset_peak();
  const int64_t before = allocator(Device::cpu()).stats().allocated;
  init::ShapesScope shapes;
  auto model = zoo::create(
      "llama", {{"width", 4096}, {"heads", 32}, {"kv_heads", 8}, {"layers", 8}, {"hidden", 11008}, {"vocab", 32000}});
  EXPECT_GT(model->num_parameters(), 1'000'000'000);
  EXPECT_LT(allocator(Device::cpu()).stats().peak_allocated - before, 1 << 20);
}

// Into quantized ones too, whose scales take the gain over.
TEST(Lazy, BatchNormsFoldIntoWeightsThatAreElsewhere) {
  Scratch dir;
  const Tensor x = sample_normal({2, 3, 16, 16}).to(f32);
  auto prepare = [&](Module& m, const std::function<void()>& run) {
    quantize::Config config;
    config.batch_norms = quantize::BatchNorms::freeze;
    quantize::prepare(m, run, config);
  };
  for (bool quantized : {false, true}) {
    auto create = [] { return zoo::create("resnet_small", {{"width", 64}, {"stages", 2}, {"channels", 3}}); };
    auto model = create();
    auto run = [&](ZooModel& m) { return no_grad([&] { return m(x); }); };
    model->train();
    run(*model);  // statistics of batch norms
    model->eval();
    if (quantized) {
      prepare(*model, [&] { run(*model); });
      quantize::calibrate(*model, [&] { run(*model); });
      quantize::freeze(*model);
    }
    std::unique_ptr<ZooModel> lazy;
    {
      init::ShapesScope shapes;
      LazyScope scope;
      lazy = create();
      lazy->eval();
      if (quantized) prepare(*lazy, [&] { run(*lazy); });
    }
    std::vector<NamedTensor> elsewhere;
    for (const NamedTensor& t : state_dict(*model))
      elsewhere.push_back(
          {t.name, lazy_tensor(t.tensor.shape(), t.tensor.dtype(), [t] { return t.tensor.detach().clone(); })});
    adopt_state_dict(*lazy, elsewhere);
    if (quantized) quantize::restore(*lazy, true);
    for (ZooModel* m : {model.get(), lazy.get()}) {
      auto forward = [&](const Tensors& in) -> Tensors {
        LazyScope scope;
        return {(*m)(in[0])};
      };
      ExportReport report = export_onnx(*m, forward, {{"image", x, {{0, "batch"}}}},
                                        dir / (m == lazy.get() ? "lazy/model.onnx" : "model.onnx"),
                                        {.profile = Profile::trt10, .external_data = true});
      EXPECT_TRUE(std::any_of(report.notes.begin(), report.notes.end(), [](const std::string& n) {
        return n.ends_with("batch norms were folded into weights");
      }));
    }
    for (const char* file : {"model.onnx", "model.weights.bin"})
      EXPECT_TRUE(read_file(dir / file) == read_file(dir / "lazy" + ("/" + std::string(file)))) << file << quantized;
  }
}

struct Case {
  const char* name;
  const char* config;
  Profile profile;
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

class StreamedExport : public testing::TestWithParam<Case> {
 protected:
  // The same weights in two runs: one's only checkpoint was written by four processes, the other's by one.
  void SetUp() override {
    const std::string config = std::string(GetParam().config) + R"(
[data]
kind = "tokens"
train = "absent.bin"
[train]
steps = 10
)";
    for (const std::string& run : {sharded_, whole_}) write_file(run + "/config.toml", config);
    auto model = make_model(load_config(whole_ + "/config.toml"));
    for (const NamedTensor& p : model->parameters()) {
      bytes_ += int64_t(p.tensor.nbytes());
      largest_ = std::max(largest_, int64_t(p.tensor.nbytes()));
    }
    const std::vector<Piece> all = whole_pieces("model", state_dict(*model));
    save(whole_, all, 1);
    save(sharded_, all, 4);
  }

  static void save(const std::string& run, const std::vector<Piece>& all, int size) {
    std::atomic<bool> hurry = false;
    for (int rank = size - 1; rank >= 0; --rank) {
      checkpoint::Job job{.dir = run + "/checkpoints",
                          .attempt = "1",
                          .step = 10,
                          .rank = rank,
                          .size = size,
                          .pieces = share_of(all, rank, size)};
      checkpoint::write(job, hurry);
    }
  }

  std::string write(bool lazy, bool verify) {
    Trained trained = load_trained(lazy ? sharded_ : whole_, lazy);
    auto forward = [&](const Tensors& x) -> Tensors {
      LazyScope scope;
      return {(*trained.model)(x[0])};
    };
    BundleOptions options{.name = "text", .verify = verify};
    options.graph.profile = GetParam().profile;
    options.graph.external_data = true;
    options.graph.ranges = {{"batch", {1, 2, 2}}, {"seq", {1, 4, 8}}};
    const ExportInput input{"tokens", sample_index({2, 8}, 64), {{0, "batch"}, {1, "seq"}}};
    std::string out = scratch_ / (lazy ? "streamed" : "gathered");
    BundleReport report = export_bundle(*trained.model, forward, {input}, out, options);
    EXPECT_TRUE(report.passed()) << report.text();
    return out;
  }

  Scratch scratch_;
  const std::string sharded_ = scratch_ / "sharded", whole_ = scratch_ / "whole";
  int64_t bytes_ = 0, largest_ = 0;
};

TEST_P(StreamedExport, NeedsMemoryForATensorNotForTheModel) {
  Allocator& host = allocator(Device::cpu());
  const int64_t before = host.stats().allocated;
  host.reset_peak();
  std::string streamed = write(true, false);
  const int64_t peak = host.stats().peak_allocated - before;
  RecordProperty("model_bytes", std::to_string(bytes_));
  RecordProperty("peak_bytes", std::to_string(peak));
  std::printf("model %.1f MB, its largest tensor %.1f MB, at most %.1f MB in use\n", double(bytes_) / 1e6,
              double(largest_) / 1e6, double(peak) / 1e6);
  EXPECT_LT(peak, bytes_ / 5);

  host.reset_peak();
  std::string gathered = write(false, false);
  EXPECT_GT(host.stats().peak_allocated - before, bytes_);
  for (const char* file : {"model.onnx", "model.weights.bin", "reference/output.npy", "lint.json"})
    EXPECT_TRUE(read_file(streamed + "/" + file) == read_file(gathered + "/" + file)) << file;
}

TEST_P(StreamedExport, AgreesWithOnnxRuntime) {
  XY_NEEDS_ORT();
  write(true, true);
}

constexpr const char* kGpt = R"(
[model]
name = "gpt2"
layers = 10
width = 192
heads = 4
vocab = 256
context = 16
)";
constexpr const char* kLlama8 = R"(
[model]
name = "llama"
layers = 10
width = 192
heads = 4
kv_heads = 2
hidden = 512
vocab = 256
context = 16
tied = true
[quantize]
format = "int8"
weights_only = true
)";
INSTANTIATE_TEST_SUITE_P(Models, StreamedExport,
                         testing::Values(Case{"gpt2", kGpt, Profile::exact}, Case{"gpt2_fp16", kGpt, Profile::trt10},
                                         Case{"llama_int8", kLlama8, Profile::ort_cpu}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace xylem
