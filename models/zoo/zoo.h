// SPDX-License-Identifier: Apache-2.0
// Models by name: zoo::create("gpt2", {{"layers", 4}}).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/util/options.h"
#include "models/zoo/model.h"

namespace xylem::zoo {

std::vector<std::string> names();  // gpt2, llama, mlp, mobilenet_small, resnet18, ...
// Throws naming an unknown model or option and the nearest known one.
std::unique_ptr<ZooModel> create(const std::string& name, const Options& options = {}, Device device = {});
// The model that a folder of the Hugging Face hub describes in its config.json (gpt2, llama), with its weights.
std::unique_ptr<ZooModel> create_pretrained(const std::string& folder, Device device = {});
std::string options_help(const std::string& name);  // each option with its default, one per line

}  // namespace xylem::zoo
