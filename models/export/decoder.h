// SPDX-License-Identifier: Apache-2.0
// Export of a language model with a key-value cache, for generating text token by token.
#pragma once
#include <string>
#include <vector>

#include "models/export/export.h"
#include "models/zoo/model.h"

namespace xylem {

// How the graph remembers earlier tokens. Names are those of Hugging Face's Optimum.
//   growing   inputs input_ids [batch, seq], attention_mask [batch, total], position_ids [batch, seq],
//             past_key_values.{i}.key and .value [batch, kv heads, past, head size] with total = past + seq;
//             outputs logits [batch, seq, vocab], present.{i}.key and .value [batch, kv heads, total, head size].
//             past may be 0, so that one graph reads the prompt and continues it.
//   fixed     the cache has room for `max_length` tokens, and new ones are written at position_ids: inputs input_ids,
//             position_ids, past_key_values.{i}.* [batch, kv heads, max_length, head size]; outputs logits and
//             present.{i}.* of the same shape. No shape changes from token to token.
enum class CacheKind { growing, fixed };

struct DecoderOptions {
  CacheKind cache = CacheKind::growing;
  int64_t max_length = 0;        // of a fixed cache; 0: the model's context
  bool last_token_only = false;  // logits [batch, 1, vocab] of the last token
  ExportOptions onnx = {};
};

struct DecoderCache {
  int64_t heads = 0, size = 0;  // of keys and values
};

// gpt2 and llama, and any model whose only dependence on positions is rotary(), the first rows of a table of positions
// and causal attention().
// `layers`, if given, tells what the cache of each layer holds.
ExportReport export_decoder(LanguageModel& model, const std::string& file, const DecoderOptions& options = {},
                            std::vector<DecoderCache>* layers = nullptr);

}  // namespace xylem
