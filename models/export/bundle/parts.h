// SPDX-License-Identifier: Apache-2.0
// What a bundle is made of, apart from the files that every bundle has.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "models/export/bundle/bundle.h"
#include "models/export/bundle/sizes.h"

namespace xylem {

struct BundleParts {
  std::vector<std::string> inputs = {};  // names, known at the latest when the model has been written
  std::function<ExportReport(const std::string& file, const ExportOptions& options)> write;
  // Inputs of the reference, in the order of `inputs`, and the outputs that belong to them.
  std::function<std::pair<Tensors, Tensors>(const std::string& file)> reference;
  std::function<std::vector<BundleCheck>(const std::string& file, const ExportOptions& options, bool quantized)> verify;
};

// `options.graph.ranges` are complete.
BundleReport write_bundle(BundleParts& parts, const std::string& folder, const BundleOptions& options);

struct Limits {
  double of_largest, relative;
};
// How far an exported model may be from the live one.
Limits limits_of(const ExportOptions& options, bool quantized, bool optimized);
BundleCheck compare(const Tensors& got, const Tensors& want, const Limits& limits);

}  // namespace xylem
