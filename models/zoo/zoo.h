// SPDX-License-Identifier: Apache-2.0
// Models by name: zoo::create("gpt2", {{"layers", int64_t(4)}}).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "models/zoo/model.h"
#include "models/zoo/options.h"

namespace xylem::zoo {

std::vector<std::string> names();  // gpt2, llama, mlp, resnet18, resnet50, resnet_small, unet, vit
// Throws naming an unknown model or option and the nearest known one.
std::unique_ptr<ZooModel> create(const std::string& name, const Options& options = {}, Device device = {});
std::string options_help(const std::string& name);  // each option with its default, one per line

}  // namespace xylem::zoo
