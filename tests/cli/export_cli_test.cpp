// SPDX-License-Identifier: Apache-2.0
// `xylem export` and `xylem lint` as a user runs them: a language model with a cache, and what a target makes of it.
#ifdef XY_WITH_ONNX
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "models/export/runtime/ort.h"
#include "tests/cli/program.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;
using program::xylem;
using testing::HasSubstr;

TEST(ExportCli, ADecoderIsWrittenVerifiedAndLinted) {
  Scratch scratch;
  const fs::path dir = scratch.path();
  program::write_tiny_job(dir,
                          "[train]\nsteps = 2\nglobal_batch = 4\n[optimizer]\nlr = 1e-2\n[checkpoint]\nevery = 2\n");
  ASSERT_EQ(xylem("train " + (dir / "tiny.toml").string()).code, 0);
  const std::string run = (dir / "run").string(), verify = OrtSession::available() ? " --verify" : "";
  for (const std::string cache : {"growing", "fixed --max-length 6 --profile trt11 --opset 24"}) {
    const fs::path bundle = dir / cache.substr(0, 5);
    Outcome o = xylem("export " + run + " --out " + bundle.string() + verify + " --cache " + cache);
    ASSERT_EQ(o.code, 0) << o.text;
    EXPECT_THAT(o.text, HasSubstr("passed"));
    const std::string lint = "lint " + (bundle / "model.onnx").string();
    Outcome quiet = xylem(lint + " --target trt11.0 --json");
    auto j = nlohmann::json::parse(quiet.text);
    EXPECT_EQ(j.size(), 2u);
    EXPECT_TRUE(j.contains("totals"));
    for (const auto& f : j["findings"]) EXPECT_NE(f["severity"], "error") << f;
    EXPECT_LE(quiet.code, 1);
    if (cache == "growing") continue;
    Outcome old = xylem(lint + " --target trt8.6 --json");
    EXPECT_EQ(old.code, 2);  // opset 24, and operators that it has not
    EXPECT_THAT(old.text, HasSubstr("TensorScatter is not supported by TensorRT 8.6 (first: 10.15)"));
  }
  Outcome absent = xylem("lint " + (dir / "absent.onnx").string());
  EXPECT_EQ(absent.code, 2);
  EXPECT_THAT(absent.text, HasSubstr("absent.onnx"));
  auto fails = [&](const std::string& options, const char* words) {
    Outcome o = xylem("export " + run + " --out " + (dir / "x").string() + options);
    EXPECT_NE(o.code, 0) << options;
    EXPECT_THAT(o.text, HasSubstr(words));
  };
  fails(" --cache growing --fixed", "do not go together");
  fails(" --cache growing --max-length 6", "--max-length 6 is for --cache fixed");
  fails(" --max-length 6", "--max-length requires --cache");
  fails(" --cache ring", "ring not in {growing,fixed}");
}

}  // namespace
}  // namespace xylem
#endif
