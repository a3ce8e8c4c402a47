// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoint/consolidate.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "models/checkpoint/files.h"
#include "models/checkpoint/reader.h"
#include "models/checkpoint/safetensors.h"

namespace xylem {

void consolidate(const std::string& folder, const std::string& out, const ConsolidateOptions& options) {
  constexpr int64_t kBlock = 1 << 22;  // elements
  CheckpointReader reader(folder);
  XY_CHECK(reader.has(options.section), "the checkpoint '", folder, "' has no part '", options.section, "'");
  std::vector<SafetensorsEntry> entries;
  for (const auto& t : reader.tensors(options.section))
    entries.push_back({t.name, is_float(t.dtype) ? options.dtype.value_or(t.dtype) : t.dtype, t.shape});
  // The same bytes whatever ranks and ZeRO stage have written it.
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(-int64_t(size_of(a.dtype)), a.name) < std::pair(-int64_t(size_of(b.dtype)), b.name);
  });

  std::string aside = out + ".tmp" + std::to_string(::getpid()),
              header = safetensors_header(entries, {{"format", "pt"}});
  try {
    checkpoint::FileWriter file(aside);
    file.write(header.data(), header.size());
    for (const SafetensorsEntry& e : entries)
      for (int64_t at = 0, all = e.shape.numel(); at < all; at += kBlock) {
        Tensor block = empty({std::min(kBlock, all - at)}, e.dtype);
        reader.read(options.section, e.name, at, block);
        file.write(block.raw(), block.nbytes());
      }
    file.finish();
    std::filesystem::rename(aside, out);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(aside, ignored);
    throw;
  }
}

}  // namespace xylem
