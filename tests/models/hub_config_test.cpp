// SPDX-License-Identifier: Apache-2.0
// Weights of the Hugging Face hub and the config.json beside them.
#include "models/zoo/hub_config.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "models/zoo/gpt2.h"
#include "models/zoo/llama.h"
#include "models/zoo/zoo.h"
#include "tests/support.h"

namespace xylem {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class HubConfigTest : public ::testing::Test {
 protected:
  void write(const json& config) const { write_file(folder_ / "config.json", config.dump(2)); }
  std::string load_error(ZooModel& model) const {
    return error_of([&] { load_pretrained(model, folder_.path()); });
  }
  static std::vector<float> logits(ZooModel& model) {
    NoGrad guard;
    model.eval();
    return model.forward(from_vector(std::vector<int64_t>{3, 1, 4, 1, 5, 9}, {1, 6})).to_vector<float>();
  }
  Scratch folder_;
};

const zoo::LlamaConfig kLlama{.vocab = 11,
                              .context = 8,
                              .layers = 2,
                              .heads = 4,
                              .kv_heads = 2,
                              .width = 16,
                              .hidden = 6,
                              .rope_base = 500,
                              .eps = 1e-3};
json llama_json() {
  return {{"model_type", "llama"},
          {"vocab_size", 11},
          {"max_position_embeddings", 8},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"hidden_size", 16},
          {"intermediate_size", 6},
          {"rms_norm_eps", 1e-3},
          {"rope_theta", 500.0},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"rope_scaling", nullptr},
          {"tie_word_embeddings", false},
          {"torch_dtype", "float32"},
          {"attention_dropout", 0.0},
          {"use_cache", true},
          {"head_dim", 4}};
}
const zoo::Gpt2Config kGpt2{.vocab = 11, .context = 8, .layers = 2, .heads = 2, .width = 8, .eps = 1e-3};
json gpt2_json() {
  return {{"model_type", "gpt2"},
          {"vocab_size", 11},
          {"n_positions", 8},
          {"n_ctx", 8},
          {"n_layer", 2},
          {"n_head", 2},
          {"n_embd", 8},
          {"layer_norm_epsilon", 1e-3},
          {"activation_function", "gelu_new"},
          {"resid_pdrop", 0.1},
          {"n_inner", nullptr},
          {"scale_attn_weights", true}};
}

// Its weights were drawn for other values than a model's own, so its logits tell whether they were taken.
TEST_F(HubConfigTest, AModelIsMadeAsItsConfigurationSays) {
  zoo::Llama llama(kLlama);
  save_pretrained(llama, folder_ / "model.safetensors");
  write(llama_json());
  EXPECT_EQ(logits(*zoo::create_pretrained(folder_.path())), logits(llama));
  auto newer = llama_json();  // transformers 5
  newer.erase("rope_theta");
  newer["rope_parameters"] = {{"rope_theta", 500.0}, {"rope_type", "default"}};
  write(newer);
  EXPECT_EQ(logits(*zoo::create_pretrained(folder_.path())), logits(llama));

  zoo::Gpt2 gpt2(kGpt2);
  save_pretrained(gpt2, folder_ / "model.safetensors");
  write(gpt2_json());
  EXPECT_EQ(logits(*zoo::create_pretrained(folder_.path())), logits(gpt2));
  write({{"model_type", "mamba"}});
  EXPECT_THAT(error_of([&] { zoo::create_pretrained(folder_.path()); }),
              AllOf(HasSubstr("model_type = \"mamba\""), HasSubstr("gpt2 and llama")));
}

TEST_F(HubConfigTest, AnotherModelThanTheWeightsNeedIsAnError) {
  zoo::Llama right(kLlama);
  save_pretrained(right, folder_ / "model.safetensors");
  write(llama_json());
  auto other = kLlama;
  other.rope_base = 10000, other.eps = 1e-5, other.heads = 8, other.kv_heads = 4;
  zoo::Llama wrong(other);
  EXPECT_THAT(load_error(wrong),
              AllOf(HasSubstr(folder_ / "config.json"), HasSubstr("rope_base = 500, not 10000"),
                    HasSubstr("eps = 0.001, not 1e-05"), HasSubstr("heads = 4, not 8"), Not(HasSubstr("width"))));
  other = kLlama;
  other.context = 5;  // no weight depends on it
  zoo::Llama shorter(other);
  EXPECT_EQ(load_error(shorter), "no error");
  EXPECT_EQ(error_of([&] { load_pretrained(shorter, folder_ / "model.safetensors"); }), "no error");

  auto tied = llama_json();
  tied["tie_word_embeddings"] = true;
  write(tied);
  EXPECT_EQ(load_error(right), "no error") << "a head of its own may begin as the embedding";
  write(llama_json());
  other = kLlama;
  other.tied = true;
  zoo::Llama ties(other);
  EXPECT_THAT(load_error(ties), HasSubstr("tied = false, not true"));

  zoo::Gpt2 gpt2(kGpt2);
  save_pretrained(gpt2, folder_ / "model.safetensors");
  write(gpt2_json());
  auto coarse = kGpt2;
  coarse.eps = 1e-5, coarse.heads = 4;
  zoo::Gpt2 wrong_gpt2(coarse);
  EXPECT_THAT(load_error(wrong_gpt2), AllOf(HasSubstr("eps = 0.001, not 1e-05"), HasSubstr("heads = 2, not 4")));
}

TEST_F(HubConfigTest, WhatNoOptionCanDoIsRefusedByNameAndValue) {
  zoo::Llama llama(kLlama);
  save_pretrained(llama, folder_ / "model.safetensors");
  const json llama3{{"rope_type", "llama3"}, {"factor", 8.0}};
  for (const auto& [key, value] : std::map<std::string, json>{{"model_type", "mistral"},
                                                              {"rope_scaling", llama3},
                                                              {"hidden_act", "gelu"},
                                                              {"attention_bias", true},
                                                              {"mlp_bias", true},
                                                              {"head_dim", 8},
                                                              {"sliding_window", 4096},
                                                              {"rms_norm_eps", "small"},
                                                              {"quantization_config", {{"bits", 4}}}}) {
    json config = llama_json();
    config[key] = value;
    write(config);
    EXPECT_THAT(load_error(llama), AllOf(HasSubstr(key + " = " + value.dump()), HasSubstr("it supports"))) << key;
  }
  json older = llama_json();
  older["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  write(older);
  EXPECT_THAT(load_error(llama), HasSubstr("rope_scaling = {\"factor\":2.0,\"type\":\"linear\"}"));

  zoo::Gpt2 gpt2(kGpt2);
  save_pretrained(gpt2, folder_ / "model.safetensors");
  for (const auto& [key, value] : std::map<std::string, json>{{"activation_function", "relu"},
                                                              {"scale_attn_weights", false},
                                                              {"scale_attn_by_inverse_layer_idx", true},
                                                              {"add_cross_attention", true},
                                                              {"tie_word_embeddings", false},
                                                              {"n_inner", 12}}) {
    json config = gpt2_json();
    config[key] = value;
    write(config);
    EXPECT_THAT(load_error(gpt2), HasSubstr(key + " = " + value.dump())) << key;
  }
  write_file(folder_ / "config.json", "{");
  EXPECT_THAT(load_error(gpt2), HasSubstr("holds no JSON object"));
}

}  // namespace
}  // namespace xylem
