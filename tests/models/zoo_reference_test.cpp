// SPDX-License-Identifier: Apache-2.0
// GPT-2 and Llama against plain loops in double, from checkpoints as Hugging Face writes them.
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "models/checkpoint/safetensors.h"
#include "models/zoo/gpt2.h"
#include "models/zoo/llama.h"
#include "tests/support.h"

namespace xylem {
namespace {

using Matrix = std::vector<std::vector<double>>;  // rows
using Vector = std::vector<double>;
using Weights = std::map<std::string, Tensor>;

struct Checkpoint {
  Weights weights;
  uint64_t seed = 1;
  void add(const std::string& name, const Shape& shape, double spread = 0.3, double center = 0) {
    Tensor t = sample_normal(shape, spread, seed++).to(f32);
    weights[name] = t + center;
  }
  std::vector<NamedTensor> list() const {
    std::vector<NamedTensor> all;
    for (const auto& [name, t] : weights) all.push_back({name, t});
    return all;
  }
};

Matrix matrix(const Tensor& t) {
  auto v = t.to_vector<double>();
  Matrix m(size_t(t.size(0)), Vector(size_t(t.size(1))));
  for (size_t i = 0; i < m.size(); ++i) std::copy_n(v.begin() + i * m[0].size(), m[0].size(), m[i].begin());
  return m;
}
Matrix multiply(const Matrix& a, const Matrix& b) {  // [n, k] [k, m]
  Matrix c(a.size(), Vector(b[0].size(), 0));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t k = 0; k < b.size(); ++k)
      for (size_t j = 0; j < b[0].size(); ++j) c[i][j] += a[i][k] * b[k][j];
  return c;
}
Matrix transposed(const Matrix& a) {
  Matrix t(a[0].size(), Vector(a.size()));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[0].size(); ++j) t[j][i] = a[i][j];
  return t;
}
Matrix plus(Matrix a, const Matrix& b) {
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[0].size(); ++j) a[i][j] += b[i][j];
  return a;
}
Matrix plus(Matrix a, const Vector& row) {
  for (auto& r : a)
    for (size_t j = 0; j < r.size(); ++j) r[j] += row[j];
  return a;
}
Matrix columns(const Matrix& a, size_t begin, size_t count) {
  Matrix c;
  for (const Vector& row : a) c.emplace_back(row.begin() + long(begin), row.begin() + long(begin + count));
  return c;
}

// softmax(q k^T / sqrt(d)) v with each row seeing itself and what came before.
Matrix causal_attention(const Matrix& q, const Matrix& k, const Matrix& v) {
  Matrix out(q.size(), Vector(v[0].size(), 0));
  for (size_t i = 0; i < q.size(); ++i) {
    Vector e;
    double total = 0;
    for (size_t j = 0; j <= i; ++j) {
      double dot = 0;
      for (size_t d = 0; d < q[0].size(); ++d) dot += q[i][d] * k[j][d];
      e.push_back(std::exp(dot / std::sqrt(double(q[0].size()))));
      total += e.back();
    }
    for (size_t j = 0; j <= i; ++j)
      for (size_t d = 0; d < v[0].size(); ++d) out[i][d] += e[j] / total * v[j][d];
  }
  return out;
}
void place(Matrix& whole, const Matrix& part, size_t column) {
  for (size_t i = 0; i < whole.size(); ++i) std::copy(part[i].begin(), part[i].end(), whole[i].begin() + long(column));
}

void expect_logits(const Tensor& got, const Matrix& expected) {
  auto v = got.to_vector<double>();
  ASSERT_EQ(v.size(), expected.size() * expected[0].size());
  for (size_t i = 0; i < v.size(); ++i)
    ASSERT_NEAR(v[i], expected[i / expected[0].size()][i % expected[0].size()], 2e-5) << i;
}

class HuggingFace : public ::testing::Test {
 protected:
  Scratch scratch_;
  const std::string path_ = scratch_ / "model.safetensors";
};

// ---- GPT-2: vocabulary 11, context 6, 2 layers, 2 heads, width 4 ----------------------------------------------------

constexpr size_t kWidth = 4;
zoo::Gpt2Config gpt2_config() { return {.vocab = 11, .context = 6, .layers = 2, .heads = 2, .width = kWidth}; }

Checkpoint gpt2_checkpoint() {
  Checkpoint c;
  c.add("wte.weight", {11, 4});
  c.add("wpe.weight", {6, 4});
  for (const char* h : {"h.0.", "h.1."}) {
    std::string p = h;
    for (const char* norm : {"ln_1", "ln_2"}) c.add(p + norm + ".weight", {4}, 0.2, 1), c.add(p + norm + ".bias", {4});
    c.add(p + "attn.c_attn.weight", {4, 12}), c.add(p + "attn.c_attn.bias", {12});
    c.add(p + "attn.c_proj.weight", {4, 4}), c.add(p + "attn.c_proj.bias", {4});
    c.add(p + "mlp.c_fc.weight", {4, 16}), c.add(p + "mlp.c_fc.bias", {16});
    c.add(p + "mlp.c_proj.weight", {16, 4}), c.add(p + "mlp.c_proj.bias", {4});
  }
  c.add("ln_f.weight", {4}, 0.2, 1), c.add("ln_f.bias", {4});
  return c;
}

Matrix reference_layer_norm(Matrix x, const Vector& gain, const Vector& bias) {
  for (Vector& row : x) {
    double mean = 0, variance = 0;
    for (double v : row) mean += v / double(row.size());
    for (double v : row) variance += (v - mean) * (v - mean) / double(row.size());
    for (size_t j = 0; j < row.size(); ++j) row[j] = (row[j] - mean) / std::sqrt(variance + 1e-5) * gain[j] + bias[j];
  }
  return x;
}

Matrix reference_gpt2(const Weights& w, const std::vector<int64_t>& tokens) {
  auto get = [&](const std::string& name) { return matrix(w.at(name)); };
  auto vec = [&](const std::string& name) { return w.at(name).to_vector<double>(); };
  auto conv1d = [&](const Matrix& x, const std::string& name) {
    return plus(multiply(x, get(name + ".weight")), vec(name + ".bias"));
  };
  auto norm = [&](const Matrix& x, const std::string& name) {
    return reference_layer_norm(x, vec(name + ".weight"), vec(name + ".bias"));
  };
  Matrix wte = get("wte.weight"), wpe = get("wpe.weight"), x;
  for (size_t i = 0; i < tokens.size(); ++i) x.push_back(plus(Matrix{wte[size_t(tokens[i])]}, Matrix{wpe[i]})[0]);
  for (const char* h : {"h.0.", "h.1."}) {
    std::string p = h;
    Matrix qkv = conv1d(norm(x, p + "ln_1"), p + "attn.c_attn"), mixed(x.size(), Vector(kWidth));
    for (size_t head = 0; head < 2; ++head)
      place(mixed,
            causal_attention(columns(qkv, 2 * head, 2), columns(qkv, 4 + 2 * head, 2), columns(qkv, 8 + 2 * head, 2)),
            2 * head);
    x = plus(x, conv1d(mixed, p + "attn.c_proj"));
    Matrix inner = conv1d(norm(x, p + "ln_2"), p + "mlp.c_fc");
    for (Vector& row : inner)
      for (double& v : row) v = 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    x = plus(x, conv1d(inner, p + "mlp.c_proj"));
  }
  return multiply(norm(x, "ln_f"), transposed(wte));
}

const std::vector<int64_t> kTokens = {3, 10, 0, 3, 7};

TEST_F(HuggingFace, Gpt2LoadsFromTheHubsFile) {
  Checkpoint c = gpt2_checkpoint();
  auto list = c.list();
  for (const char* h : {"h.0.", "h.1."}) {  // the causal masks that old files carry
    list.push_back({std::string(h) + "attn.bias", ones({1, 1, 6, 6})});
    list.push_back({std::string(h) + "attn.masked_bias", full({}, -1e4)});
  }
  save_safetensors(path_, list, {{"format", "pt"}});
  zoo::Gpt2 model(gpt2_config());
  load_pretrained(model, path_);
  expect_logits(model.forward(from_vector(kTokens, {1, 5})), reference_gpt2(c.weights, kTokens));
}

TEST_F(HuggingFace, Gpt2LoadsWithPrefixAndTiedHeadAndSavesTheSameNames) {
  Checkpoint c = gpt2_checkpoint();
  std::vector<NamedTensor> list{{"lm_head.weight", c.weights.at("wte.weight")}};
  for (const NamedTensor& t : c.list()) list.push_back({"transformer." + t.name, t.tensor});
  save_safetensors(path_, list);
  zoo::Gpt2 model(gpt2_config());
  load_pretrained(model, path_);
  expect_logits(model.forward(from_vector(kTokens, {1, 5})), reference_gpt2(c.weights, kTokens));

  save_pretrained(model, path_);
  Metadata metadata;
  auto saved = load_safetensors(path_, &metadata);
  EXPECT_EQ(metadata.at("format"), "pt");  // transformers refuses files without it
  EXPECT_EQ(saved.size(), c.weights.size());
  for (const NamedTensor& t : saved) {
    ASSERT_TRUE(t.name.starts_with("transformer.")) << t.name;
    const Tensor& original = c.weights.at(t.name.substr(12));
    EXPECT_EQ(t.tensor.shape(), original.shape()) << t.name;
    EXPECT_EQ(t.tensor.to_vector<float>(), original.to_vector<float>()) << t.name;
  }
}

TEST_F(HuggingFace, Gpt2SaysWhatDoesNotFit) {
  Checkpoint c = gpt2_checkpoint();
  c.weights.erase("ln_f.bias");
  c.add("h.2.ln_1.weight", {4});
  save_safetensors(path_, c.list());
  zoo::Gpt2 model(gpt2_config());
  EXPECT_THAT(error_of([&] { load_pretrained(model, path_); }),
              ::testing::AllOf(::testing::HasSubstr(path_), ::testing::HasSubstr("transformer.ln_f.bias"),
                               ::testing::HasSubstr("transformer.h.2.ln_1.weight")));
}

// ---- Llama: vocabulary 11, 2 layers, 4 query heads that share 2 key heads, width 16, feed-forward 6

zoo::LlamaConfig llama_config(bool tied) {
  return {.vocab = 11, .context = 8, .layers = 2, .heads = 4, .kv_heads = 2, .width = 16, .hidden = 6, .tied = tied};
}

Checkpoint llama_checkpoint() {
  Checkpoint c;
  c.add("model.embed_tokens.weight", {11, 16});
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    std::string p = layer;
    c.add(p + "input_layernorm.weight", {16}, 0.2, 1), c.add(p + "post_attention_layernorm.weight", {16}, 0.2, 1);
    c.add(p + "self_attn.q_proj.weight", {16, 16}), c.add(p + "self_attn.k_proj.weight", {8, 16});
    c.add(p + "self_attn.v_proj.weight", {8, 16}), c.add(p + "self_attn.o_proj.weight", {16, 16});
    c.add(p + "mlp.gate_proj.weight", {6, 16}), c.add(p + "mlp.up_proj.weight", {6, 16});
    c.add(p + "mlp.down_proj.weight", {16, 6});
  }
  c.add("model.norm.weight", {16}, 0.2, 1);
  c.add("lm_head.weight", {11, 16});
  return c;
}

Matrix reference_rms_norm(Matrix x, const Vector& gain) {
  for (Vector& row : x) {
    double square = 0;
    for (double v : row) square += v * v / double(row.size());
    for (size_t j = 0; j < row.size(); ++j) row[j] *= gain[j] / std::sqrt(square + 1e-5);
  }
  return x;
}

// Hugging Face's rotation: x cos + rotate_half(x) sin with the frequencies repeated over both halves.
Matrix reference_rotary(const Matrix& x) {
  Matrix y = x;
  size_t half = x[0].size() / 2;
  for (size_t s = 0; s < x.size(); ++s)
    for (size_t j = 0; j < 2 * half; ++j) {
      double angle = double(s) * std::pow(10000.0, -double(j % half) / double(half));
      double partner = j < half ? -x[s][j + half] : x[s][j - half];
      y[s][j] = x[s][j] * std::cos(angle) + partner * std::sin(angle);
    }
  return y;
}

Matrix reference_llama(const Weights& w, const std::vector<int64_t>& tokens, const std::string& head) {
  auto linear = [&](const Matrix& x, const std::string& name) {
    return multiply(x, transposed(matrix(w.at(name + ".weight"))));
  };
  auto norm = [&](const Matrix& x, const std::string& name) {
    return reference_rms_norm(x, w.at(name + ".weight").to_vector<double>());
  };
  Matrix table = matrix(w.at("model.embed_tokens.weight")), x;
  for (int64_t t : tokens) x.push_back(table[size_t(t)]);
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    std::string p = layer;
    Matrix n = norm(x, p + "input_layernorm"), mixed(x.size(), Vector(16));
    Matrix q = linear(n, p + "self_attn.q_proj"), k = linear(n, p + "self_attn.k_proj"),
           v = linear(n, p + "self_attn.v_proj");
    for (size_t h = 0; h < 4; ++h)
      place(mixed,
            causal_attention(reference_rotary(columns(q, 4 * h, 4)), reference_rotary(columns(k, h / 2 * 4, 4)),
                             columns(v, h / 2 * 4, 4)),
            4 * h);
    x = plus(x, linear(mixed, p + "self_attn.o_proj"));
    n = norm(x, p + "post_attention_layernorm");
    Matrix gate = linear(n, p + "mlp.gate_proj"), up = linear(n, p + "mlp.up_proj");
    for (size_t i = 0; i < gate.size(); ++i)
      for (size_t j = 0; j < gate[0].size(); ++j) gate[i][j] *= up[i][j] / (1 + std::exp(-gate[i][j]));
    x = plus(x, linear(gate, p + "mlp.down_proj"));
  }
  return linear(norm(x, "model.norm"), head);
}

TEST_F(HuggingFace, LlamaLoadsAndSavesTheSameFile) {
  Checkpoint c = llama_checkpoint();
  auto list = c.list();
  list.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", ones({2})});
  save_safetensors(path_, list);
  zoo::Llama model(llama_config(false));
  load_pretrained(model, path_);
  expect_logits(model.forward(from_vector(kTokens, {1, 5})), reference_llama(c.weights, kTokens, "lm_head"));

  save_pretrained(model, path_);
  auto saved = load_safetensors(path_);
  EXPECT_EQ(saved.size(), c.weights.size());
  for (const NamedTensor& t : saved)
    EXPECT_EQ(t.tensor.to_vector<float>(), c.weights.at(t.name).to_vector<float>()) << t.name;
}

TEST_F(HuggingFace, LlamaLoadsTiedCheckpoints) {
  Checkpoint c = llama_checkpoint();
  c.weights.erase("lm_head.weight");
  Matrix expected = reference_llama(c.weights, kTokens, "model.embed_tokens");
  save_safetensors(path_, c.list());
  for (bool tied : {true, false}) {
    zoo::Llama model(llama_config(tied));
    load_pretrained(model, path_);
    expect_logits(model.forward(from_vector(kTokens, {1, 5})), expected);
  }
  c.weights["lm_head.weight"] = c.weights.at("model.embed_tokens.weight");
  std::vector<NamedTensor> bare;
  for (const NamedTensor& t : c.list())
    bare.push_back({t.name.starts_with("model.") ? t.name.substr(6) : t.name, t.tensor});
  save_safetensors(path_, bare);
  zoo::Llama model(llama_config(true));
  load_pretrained(model, path_);
  expect_logits(model.forward(from_vector(kTokens, {1, 5})), expected);
}

}  // namespace
}  // namespace xylem
