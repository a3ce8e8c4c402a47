// SPDX-License-Identifier: Apache-2.0
#include "models/zoo/zoo.h"

#include <functional>
#include <map>

#include "models/nn/init.h"
#include "models/zoo/gpt2.h"
#include "models/zoo/hub_config.h"
#include "models/zoo/llama.h"
#include "models/zoo/mlp.h"
#include "models/zoo/mobilenet.h"
#include "models/zoo/resnet.h"
#include "models/zoo/unet.h"
#include "models/zoo/vit.h"

namespace xylem::zoo {
namespace {

struct Maker {
  std::function<std::unique_ptr<ZooModel>(const std::string& name, const Options& options)> create;
  std::function<std::string()> help;
  std::function<Options(const HubConfig&)> from_hub;  // empty: the publisher has no config.json
};

// `Settings` lists the options; `build` makes the model from them.
template <class Settings, class Build>
Maker maker(Build build, Settings defaults = {}) {
  return {[=](const std::string& name, const Options& options) -> std::unique_ptr<ZooModel> {
            Settings settings = defaults;
            OptionTable table;
            settings.list(table);
            table.assign("the model '" + name + "'", options);
            return build(settings);
          },
          [=] {
            Settings settings = defaults;
            OptionTable table;
            settings.list(table);
            return table.help();
          },
          {}};
}
template <class Model>
Maker maker() {
  using Config = typename Model::Config;
  Maker made = maker<Config>([](const auto& config) { return std::make_unique<Model>(config); });
  if constexpr (requires { &Config::from_hub; }) made.from_hub = Config::from_hub;
  return made;
}

Maker resnet_maker(const ResNetConfig& config) {
  return maker<ResNetConfig>([](const ResNetConfig& c) { return std::make_unique<ResNet>(c); }, config);
}

const std::map<std::string, Maker>& makers() {
  static const std::map<std::string, Maker> all = {
      {"gpt2", maker<Gpt2>()},
      {"llama", maker<Llama>()},
      {"mlp", maker<Mlp>()},
      {"mobilenet_small", maker<MobileNet>()},
      {"resnet18", resnet_maker(resnet18_config())},
      {"resnet50", resnet_maker(resnet50_config())},
      {"resnet_small",
       maker<ResNetSmallConfig>([](const ResNetSmallConfig& c) { return std::make_unique<ResNet>(c.resnet()); })},
      {"unet", maker<Unet>()},
      {"vit", maker<Vit>()},
  };
  return all;
}

const Maker& find(const std::string& name) {
  auto it = makers().find(name);
  XY_CHECK(it != makers().end(), "there is no model '", name, "'; the nearest is '", nearest_name(name, names()), "'");
  return it->second;
}

}  // namespace

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, maker] : makers()) all.push_back(name);
  return all;
}

std::unique_ptr<ZooModel> create(const std::string& name, const Options& options, Device device) {
  init::DeviceScope scope(device);
  return find(name).create(name, options);
}

std::unique_ptr<ZooModel> create_pretrained(const std::string& folder, Device device) {
  const auto config = HubConfig::beside(folder);
  XY_CHECK(config, "'", folder, "' holds no config.json, which says what model its weights are of");
  const std::string name = config->text("model_type", "");
  auto it = makers().find(name);
  if (it == makers().end() || !it->second.from_hub) config->refuse("model_type", "gpt2 and llama");
  auto model = create(name, it->second.from_hub(*config), device);
  load_pretrained(*model, folder);
  return model;
}

std::string options_help(const std::string& name) { return find(name).help(); }

}  // namespace xylem::zoo
