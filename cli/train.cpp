// SPDX-License-Identifier: Apache-2.0
#include "models/train/trainer.h"

#include <csignal>
#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "core/util/check.h"
#include "distributed/world/world.h"

namespace xylem::cli {
namespace {

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string help_config;  // text or markdown
  std::string trace;
  bool resume = false, fresh = false;
};

volatile std::sig_atomic_t stop_signal = 0;

// The first signal asks for an orderly end, a second one kills; SIGUSR1, which reaches a rank on several ways, never
// does.
void stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int signal) {
    stop_signal = signal;
    request_stop();
  };
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  action.sa_flags |= SA_RESETHAND;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

std::string quoted(const std::string& word) {
  if (word.find_first_of(" \"'$&;|<>*?()[]{}\\`!#~") == std::string::npos) return word;
  std::string text = "'";
  for (char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

namespace {

void run(const Arguments& a) {
  if (!a.help_config.empty()) {
    std::fputs((a.help_config == "markdown" ? config_page() : config_help()).c_str(), stdout);
    return;
  }
  XY_CHECK(!a.config.empty(), "train needs a configuration file; examples lie in examples/configs");
  TrainConfig config = load_config(a.config, a.overrides);
  stop_on_signals();
  TrainResult result = train(config, a.fresh ? Start::fresh : a.resume ? Start::resume : Start::automatic, a.trace);
  if (!result.interrupted) return;
  std::string again = "xylem train " + quoted(a.config);
  for (const std::string& o : a.overrides) again += " --set " + quoted(o);
  if (world().rank == 0)
    std::printf("stopped after step %lld, saved %s\nto go on: %s\n", static_cast<long long>(result.step),
                result.checkpoint.c_str(), again.c_str());
  throw Exit{stop_signal == SIGINT ? 130 : kStopped};
}

}  // namespace

void add_train_command(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  CLI::App* cmd =
      app.add_subcommand("train", "Train a model as a TOML file says; goes on where an earlier run stopped");
  cmd->add_option("CONFIG", a->config, "configuration file (see --help-config)");
  cmd->add_option("--set", a->overrides, "override a key: --set optimizer.lr=3e-4; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  CLI::Option* resume = cmd->add_flag("--resume", a->resume, "insist on going on: fail if there is no checkpoint");
  cmd->add_flag("--fresh", a->fresh, "start over; an earlier run in the same folder is moved aside")->excludes(resume);
  cmd->add_option("--trace", a->trace, "write a trace for chrome://tracing or ui.perfetto.dev: phases and collectives")
      ->type_name("FILE");
  cmd->add_flag("--help-config{text}", a->help_config,
                "list every key of the configuration and exit; --help-config=markdown prints docs/config.md");
  cmd->callback([a] { run(*a); });
}

}  // namespace xylem::cli
