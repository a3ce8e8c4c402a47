// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "core/util/check.h"
#include "models/train/trained.h"

namespace xylem::cli {
namespace {

struct Arguments {
  std::string run, prompt = "\n", device = "auto";
  GenerateOptions options{.max_tokens = 400, .temperature = 0.8, .top_k = 40};
};

void run(const Arguments& a) {
  Trained trained = load_trained(a.run);
  ZooModel* model = trained.model.get();
  auto* language = dynamic_cast<LanguageModel*>(model);
  XY_CHECK(language, "generate continues text, but the run '", a.run, "' holds a model for ", name_of(model->task()));
  XY_CHECK(language->vocab() <= 256, "generate reads and writes bytes, but the model of '", a.run, "' has ",
           language->vocab(), " tokens");

  model->to(Device::parse(a.device));

  GenerateOptions options = a.options;
  options.on_token = [](int64_t token) {
    std::fputc(int(token), stdout);
    std::fflush(stdout);
    return true;
  };
  std::vector<int64_t> prompt;
  for (unsigned char c : a.prompt) prompt.push_back(c);
  std::fputs(a.prompt.c_str(), stdout);
  generate(*language, prompt, options);
  std::fputc('\n', stdout);
}

}  // namespace

void add_generate_command(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  CLI::App* cmd = app.add_subcommand("generate", "Let a trained byte-level language model continue a text");
  cmd->add_option("RUN", a->run, "run folder, or one of its checkpoints")->required();
  cmd->add_option("--prompt", a->prompt, "text to continue");
  cmd->add_option("--tokens", a->options.max_tokens, "tokens to write")->capture_default_str();
  cmd->add_option("--temperature", a->options.temperature, "0 takes the likeliest token every time")
      ->capture_default_str();
  cmd->add_option("--top-k", a->options.top_k, "choose among the k likeliest; 0: among all")->capture_default_str();
  cmd->add_option("--seed", a->options.seed, "another seed, another text")->capture_default_str();
  cmd->add_option("--device", a->device, "cpu, cuda or auto")->capture_default_str();
  cmd->callback([a] { run(*a); });
}

}  // namespace xylem::cli
