// SPDX-License-Identifier: Apache-2.0
#include "models/train/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "core/util/check.h"
#include "tests/support.h"

namespace xylem {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const char* kMinimal =
    "[model]\n"
    "name = \"gpt2\"\n"
    "layers = 2\n"
    "dropout = 0.1\n"
    "[data]\n"
    "kind = \"tokens\"\n"
    "train = \"a.tokens\"\n";

std::string config_error(const std::string& more, const std::vector<std::string>& overrides = {}) {
  return error_of([&] { parse_config(kMinimal + more, overrides, "run.toml"); });
}

TEST(Config, ReadsKeysAndModelOptions) {
  TrainConfig c =
      parse_config(std::string(kMinimal) + "mean = [0.5, 1]\n[optimizer]\nname = \"sgd\"\nlr = 2\nnesterov = true\n");
  EXPECT_EQ(c.model.name, "gpt2");
  EXPECT_EQ(std::get<int64_t>(c.model.options.at("layers")), 2);
  EXPECT_EQ(std::get<double>(c.model.options.at("dropout")), 0.1);
  EXPECT_THAT(c.data.mean, ElementsAre(0.5, 1));
  EXPECT_EQ(c.optimizer.lr, 2);  // an integer serves as a number
  EXPECT_TRUE(std::get<bool>(c.optimizer.options.at("nesterov")));
  EXPECT_EQ(std::get<double>(c.optimizer.options.at("momentum")), 0.9);  // its own default
  EXPECT_EQ(c.train.steps, TrainConfig().train.steps);
}

TEST(Config, OverridesWinInOrder) {
  TrainConfig c = parse_config(kMinimal, {"optimizer.lr=3e-4", "run.dir=runs/x", "model.layers=7", "run.dir=runs/y",
                                          "data.mean=[1, 2]", "train.debug_nan=true", "model.name=llama"});
  EXPECT_EQ(c.optimizer.lr, 3e-4);
  EXPECT_EQ(c.run.dir, "runs/y");
  EXPECT_EQ(std::get<int64_t>(c.model.options.at("layers")), 7);
  EXPECT_THAT(c.data.mean, ElementsAre(1, 2));
  EXPECT_TRUE(c.train.debug_nan);
  EXPECT_EQ(c.model.name, "llama");
}

TEST(Config, OverridesMayBeWrittenAsInTheFile) {
  TrainConfig c = parse_config(kMinimal, {"run.device=\"cpu\"", " optimizer.lr = 3e-4 ", "run.dir='runs/x y'",
                                          "train.precision = bf16", "data.val=\"", "run.init=a\"b"});
  EXPECT_EQ(c.run.device, "cpu");
  EXPECT_EQ(c.optimizer.lr, 3e-4);
  EXPECT_EQ(c.run.dir, "runs/x y");
  EXPECT_EQ(c.train.precision, "bf16");
  EXPECT_EQ(c.data.val, "\"");
  EXPECT_EQ(c.run.init, "a\"b");
  for (const char* none : {" = ", "=3", "  =3"})
    EXPECT_THAT(config_error("", {none}), HasSubstr(std::string("--set needs key=value but got \"") + none));
  for (const char* empty : {"run.dir=", "run.dir = ", "run.dir=\"\""})
    EXPECT_THAT(config_error("", {empty}), HasSubstr(std::string("--set ") + empty + ": run.dir is empty"));
}

TEST(Config, AnUnknownKeyNamesWhatWasMeant) {
  for (const auto& [given, meant] : std::map<std::string, std::string>{{"learning_rate", "optimizer.lr"},
                                                                       {"train.learning_rate", "optimizer.lr"},
                                                                       {"lr", "optimizer.lr"},
                                                                       {"batch-size", "train.global_batch"},
                                                                       {"max_grad_norm", "train.clip"},
                                                                       {"shedule.kind", "schedule.kind"},
                                                                       {"trian.steps", "train.steps"},
                                                                       {"warmup_steps", "schedule.warmup"},
                                                                       {"ema.decai", "ema.decay"},
                                                                       {"optimizer.betas1", "optimizer.beta1"}})
    EXPECT_THAT(config_error("", {given + "=1"}), HasSubstr("did you mean '" + meant + "'?")) << given;
  EXPECT_THAT(config_error("", {"nothing.like_it=1"}),
              AllOf(HasSubstr("unknown key 'nothing.like_it'; `xylem train --help-config` lists all"),
                    Not(HasSubstr("did you mean"))));
}

TEST(Config, AnUnknownKeyNamesTheNearest) {
  EXPECT_THAT(
      config_error("[optimizer]\nlearning_rate = 1\n"),
      AllOf(HasSubstr("run.toml:9"), HasSubstr("'adamw' has no option 'learning_rate'"), HasSubstr("it has lr,")));
  EXPECT_THAT(config_error("[optimizer]\nnesterov = true\n"), HasSubstr("'adamw' has no option 'nesterov'"));
  EXPECT_THAT(config_error("", {"optimizer.beta1=1"}), HasSubstr("beta1 must be at least 0 and below 1, but is 1"));
  EXPECT_THAT(config_error("[train]\nglobal_bach = 1\n"),
              AllOf(HasSubstr("run.toml:9"), HasSubstr("'train.global_bach'"), HasSubstr("'train.global_batch'")));
  EXPECT_THAT(config_error("", {"chekpoint.every=3"}),
              AllOf(HasSubstr("--set chekpoint.every=3"), HasSubstr("'checkpoint.every'")));
  EXPECT_THAT(config_error("[trian]\n[trian.x]\ny = 1\n"), HasSubstr("unknown key 'trian.x'"));
}

TEST(Config, AWrongTypeNamesKeyTypeAndValue) {
  EXPECT_THAT(config_error("[train]\nsteps = \"many\"\n"),
              AllOf(HasSubstr("run.toml:9"), HasSubstr("train.steps needs an integer"), HasSubstr("many")));
  EXPECT_THAT(config_error("[train]\nsteps = 1.5\n"), HasSubstr("train.steps needs an integer but got 1.5"));
  EXPECT_THAT(config_error("[ema]\ndecay = true\n"), HasSubstr("ema.decay needs a number but got true"));
  EXPECT_THAT(config_error("flip = 1\n"), HasSubstr("data.flip needs true or false but got 1"));
  EXPECT_THAT(config_error("[run]\ndir = 3\n"), HasSubstr("run.dir needs a text but got 3"));
  EXPECT_THAT(config_error("mean = [1, \"x\"]\n"), HasSubstr("data.mean needs a list of numbers"));
  EXPECT_THAT(config_error("", {"optimizer.lr=fast"}), HasSubstr("optimizer.lr needs a number but got"));
}

TEST(Config, ValuesOutOfRangeAndChoices) {
  EXPECT_THAT(config_error("[train]\nsteps = 0\n"), HasSubstr("run.toml:9: train.steps needs at least 1 but got 0"));
  EXPECT_THAT(config_error("", {"train.steps=-3"}), HasSubstr("--set train.steps=-3: train.steps needs at least 1"));
  EXPECT_THAT(config_error("[train]\nprecision = \"bf61\"\n"),
              AllOf(HasSubstr("train.precision"), HasSubstr("got \"bf61\""), HasSubstr("nearest is \"bf16\"")));
  EXPECT_THAT(config_error("[train]\nglobal_batch = 10\nmicro_batch = 4\n"), HasSubstr("not a multiple"));
  EXPECT_THAT(config_error("[ema]\ndecay = 1\n"), HasSubstr("below 1"));
  EXPECT_THAT(config_error("[schedule]\nfloor = 1.5\n"),
              HasSubstr("run.toml:9: schedule.floor needs at most 1 but got 1.5"));
  EXPECT_EQ(config_error("[schedule]\nfloor = 1\n"), "no error");
  EXPECT_THAT(config_error("[train]\nsteps = 20\n[schedule]\nwarmup = 21\n"),
              HasSubstr("run.toml:11: schedule.warmup (21) is longer than train.steps (20)"));
  EXPECT_EQ(config_error("[train]\nsteps = 20\n[schedule]\nwarmup = 20\n"), "no error");
}

TEST(Config, AGraphOfAStepExcludesStepsThatDiffer) {
  EXPECT_EQ(config_error("[train]\ncuda_graph = true\n[distributed]\nzero = 3\n"), "no error");
  for (const char* other : {"train.debug_nan=true", "quantize.format=int8", "distributed.find_unused=true"}) {
    std::string key = std::string(other).substr(0, std::string(other).find('='));
    EXPECT_EQ(config_error("", {other}), "no error");
    EXPECT_THAT(config_error("", {other, "train.cuda_graph=true"}),
                AllOf(HasSubstr("train.cuda_graph repeats one recorded step, but "),
                      HasSubstr(key == "quantize.format" ? "quantization" : key)));
  }
  EXPECT_THAT(config_error("[train]\ncuda_graph = \"on\"\n"), HasSubstr("train.cuda_graph needs true or false"));
  EXPECT_EQ(config_hash(parse_config(kMinimal)), config_hash(parse_config(kMinimal, {"train.cuda_graph=true"})));
}

TEST(Config, MissingFilesAndKeys) {
  try {
    load_config("/nowhere/run.toml");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.message(), AllOf(HasSubstr("'/nowhere/run.toml'"), HasSubstr("examples/configs")));
  }
  try {
    parse_config("", {}, "empty.toml");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.message(), HasSubstr("model.name is missing"));
  }
  EXPECT_THAT(config_error("[run\n"), HasSubstr("run.toml:8"));
  EXPECT_THAT(config_error("", {"nonsense"}), HasSubstr("--set needs key=value"));
}

TEST(Config, TheResolvedFileReadsBackTheSame) {
  TrainConfig c = parse_config(kMinimal, {"run.dir=a \"b\" \\c", "optimizer.lr=0.1", "data.stddev=[0.25]"});
  std::string text = to_toml(c);
  EXPECT_EQ(to_toml(parse_config(text)), text);
  EXPECT_EQ(to_toml(parse_config(to_toml(c, true))), text);
  EXPECT_THAT(config_changes(c, parse_config(text)), testing::IsEmpty());
  TrainConfig other = parse_config(text, {"optimizer.lr=0.2", "model.heads=4"});
  EXPECT_THAT(config_changes(c, other), ElementsAre("model.heads: absent -> 4", "optimizer.lr: 0.1 -> 0.2"));
}

TEST(Config, TheHashCoversWhatDecidesTheResult) {
  TrainConfig a = parse_config(kMinimal);
  EXPECT_EQ(config_hash(a), config_hash(parse_config(kMinimal, {"run.dir=elsewhere", "train.log_every=3"})));
  EXPECT_NE(config_hash(a), config_hash(parse_config(kMinimal, {"model.layers=3"})));
  EXPECT_NE(config_hash(a), config_hash(parse_config(kMinimal, {"optimizer.lr=3"})));
}

TEST(Config, ThePageInDocsIsUpToDate) {
  std::filesystem::path folder = std::filesystem::canonical("/proc/self/exe").parent_path();
  while (!std::filesystem::exists(folder / "docs/config.md") && folder.has_relative_path())
    folder = folder.parent_path();
  std::ifstream in(folder / "docs/config.md");
  std::ostringstream text;
  text << in.rdbuf();
  EXPECT_EQ(text.str(), config_page()) << "regenerate it: xylem train --help-config=markdown > docs/config.md";
}

}  // namespace
}  // namespace xylem
