// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/util/crc32c.h"
#include "models/loop/flops.h"
#include "models/loop/meter.h"
#include "models/loop/nan_search.h"
#include "models/loop/plot.h"
#include "models/loop/run_log.h"
#include "ops/ops.h"
#include "tests/support.h"

namespace xylem {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class LogTest : public testing::Test {
 protected:
  std::vector<nlohmann::json> metrics() const {
    std::istringstream lines(read_file(dir_ + "/metrics.jsonl"));
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(lines, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }
  Scratch scratch_;
  const std::string dir_ = scratch_.path();
};

TEST(Crc32c, MatchesTheStandardsVectors) {  // RFC 3720, B.4
  EXPECT_EQ(crc32c("123456789", 9), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0').data(), 32), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff').data(), 32), 0x62a8ab43u);
  EXPECT_EQ(crc32c("6789", 4, crc32c("12345", 5)), 0xe3069283u);
}

TEST(Progress, IsShownWhereItCanBeRead) {
  // Of whoever runs the test.
  std::vector<std::pair<std::string, std::string>> before;
  for (const char* name : {"TERM", "NO_COLOR", "XY_PROGRESS"}) {
    if (const char* value = std::getenv(name)) before.emplace_back(name, value);
    unsetenv(name);
  }
  EXPECT_TRUE(shows_progress(true, ""));
  EXPECT_FALSE(shows_progress(false, ""));
  EXPECT_FALSE(shows_progress(true, "mpirun"));
  setenv("XY_PROGRESS", "1", 1);
  EXPECT_TRUE(shows_progress(true, "mpirun"));
  setenv("XY_PROGRESS", "0", 1);
  EXPECT_FALSE(shows_progress(true, ""));
  unsetenv("XY_PROGRESS");
  setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(shows_progress(true, ""));
  unsetenv("NO_COLOR");
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(shows_progress(true, ""));
  unsetenv("TERM");
  for (auto& [name, value] : before) setenv(name.c_str(), value.c_str(), 1);
}

TEST_F(LogTest, MetricsHoldFullPrecision) {
  RunLog log({.folder = dir_, .unit = "tokens", .steps = 10});
  StepReport r{.step = 1, .loss = 0.1 + 0.2, .lr = 1.0 / 3, .grad_norm = 1e-300, .per_second = 12345.678901234567};
  testing::internal::CaptureStdout();
  log.report(r, 60);
  log.finish();
  std::string shown = testing::internal::GetCapturedStdout();
  EXPECT_THAT(shown, AllOf(HasSubstr("step  1/10 | loss 0.3000 | lr 3.33e-01"), HasSubstr("12.3k tok/s"),
                           HasSubstr("1:00 left"), Not(HasSubstr("\r"))));
  auto json = metrics().at(0);
  EXPECT_EQ(json["step"], 1);
  EXPECT_EQ(json["loss"].get<double>(), 0.1 + 0.2);
  EXPECT_EQ(json["lr"].get<double>(), 1.0 / 3);
  EXPECT_EQ(json["grad_norm"].get<double>(), 1e-300);
  EXPECT_EQ(json["tokens_per_s"].get<double>(), 12345.678901234567);
  EXPECT_FALSE(json.contains("val_loss"));
}

TEST_F(LogTest, AResumedRunRepeatsNoStep) {
  testing::internal::CaptureStdout();
  {
    RunLog log({.folder = dir_, .unit = "images", .steps = 4});
    for (int64_t step = 1; step <= 4; ++step) log.report({.step = step, .loss = double(step), .val_loss = 1.0}, 0);
  }
  std::ofstream(dir_ + "/metrics.jsonl", std::ios::app) << "{\"step\": 5, \"lo";  // cut short by a crash
  {
    RunLog log({.folder = dir_, .unit = "images", .steps = 4, .resumed_at = 2});
    log.report({.step = 3, .loss = 30}, 0);
    log.finish();
  }
  testing::internal::GetCapturedStdout();
  auto all = metrics();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[2]["loss"], 30);
  EXPECT_TRUE(all[2].contains("images_per_s"));
  EXPECT_THAT(read_file(dir_ + "/loss.svg"), AllOf(HasSubstr("<svg"), HasSubstr("validation"), HasSubstr("</svg>")));
}

// A reader of TensorBoard's format, written from its description.
struct Record {
  std::string data;
  bool length_ok, data_ok;
};
std::vector<Record> read_records(const std::string& file) {
  auto masked = [](const std::string& s) {
    uint32_t crc = crc32c(s.data(), s.size());
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  };
  std::vector<Record> all;
  for (size_t at = 0; at + 12 <= file.size();) {
    uint64_t length;
    uint32_t a, b;
    std::memcpy(&length, &file[at], 8);
    std::memcpy(&a, &file[at + 8], 4);
    std::string data = file.substr(at + 12, length);
    std::memcpy(&b, &file[at + 12 + length], 4);
    all.push_back({data, masked(file.substr(at, 8)) == a, masked(data) == b});
    at += 16 + length;
  }
  return all;
}

TEST_F(LogTest, TensorBoardRecordsAreWellFormed) {
  TensorBoard board(dir_, 7);
  board.scalar("train/loss", 2.5, 300);
  board.flush();
  auto records = read_records(read_file(board.path()));
  ASSERT_EQ(records.size(), 3u);
  for (const Record& r : records) EXPECT_TRUE(r.length_ok && r.data_ok);
  EXPECT_THAT(records[0].data, HasSubstr("brain.Event:2"));
  // step 300 as varint in field 2, then summary{value{tag, simple_value}}
  std::string loss(4, '\0');
  float value = 2.5;
  std::memcpy(loss.data(), &value, 4);
  std::string expected_value = std::string("\x0a\x0atrain/loss\x15") + loss;
  EXPECT_THAT(records[2].data, HasSubstr(std::string("\x10\xac\x02\x2a\x13\x0a\x11") + expected_value));
}

TEST(Plot, DrawsAxesCurvesAndGaps) {
  std::string svg = plot_svg("a < b", "step", "loss",
                             {{"training", "blue", {{0, 5}, {10, NAN}, {20, 3}, {30, 1}}}, {"none", "red", {}}});
  EXPECT_THAT(svg, AllOf(HasSubstr("a &lt; b"), HasSubstr(">training<"), Not(HasSubstr(">none<")), HasSubstr(">30<")));
  size_t path = svg.find("<path d=\"M");
  ASSERT_NE(path, std::string::npos);
  std::string d = svg.substr(path, svg.find('"', path + 9) - path);
  EXPECT_EQ(std::count(d.begin(), d.end(), 'M'), 2);  // a gap where the value is not finite
  EXPECT_EQ(std::count(d.begin(), d.end(), 'L'), 1);
  plot_svg("", "", "", {});                          // nothing to draw
  plot_svg("", "", "", {{"one", "red", {{1, 1}}}});  // a range of width zero
}

TEST(Flops, CountsOperationsAndKnowsPeaks) {
  FlopCounter counter;
  matmul(zeros({4, 8}), zeros({8, 2}));
  EXPECT_EQ(counter.total(), 2 * 4 * 8 * 2);
  EXPECT_DOUBLE_EQ(peak_of_gpu("NVIDIA H200", "bf16").flops, 989.4e12);
  EXPECT_DOUBLE_EQ(peak_of_gpu("NVIDIA H100 PCIe", "tf32").flops, 378e12);
  EXPECT_EQ(peak_of_gpu("GeForce 256", "fp16").flops, 0);
  EXPECT_DOUBLE_EQ(peak_of_gpu("NVIDIA RTX A4000", "bf16").flops, 76.7e12) << "not an A40";
  EXPECT_EQ(peak_of_gpu("NVIDIA RTX A1000", "bf16").flops, 0) << "not an A100";
  EXPECT_EQ(peak_of_gpu("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16").flops, 0) << "a seventh of an A100";
  EXPECT_EQ(peak_flops(Device::cpu(), "fp32").flops, 0);
}

TEST(Meter, KeepsStepsAndForgetsThemAfterReading) {
  Meter meter(Device::cpu(), 4, {.flops = 1e9, .name = "test"});
  for (double loss : {1.0, 2.0}) meter.add(full({1}, loss), full({1}, 10 * loss));
  Window w = meter.read(0.5);
  EXPECT_THAT(w.losses, testing::ElementsAre(1, 2));
  EXPECT_THAT(w.norms, testing::ElementsAre(10, 20));
  EXPECT_EQ(w.stall, 0.5);
  EXPECT_EQ(meter.pending(), 0);
  EXPECT_EQ(meter.mfu(1), std::nullopt);
  meter.set_forward_flops(1e8);
  EXPECT_DOUBLE_EQ(meter.mfu(1).value(), 0.3);
  EXPECT_THAT(meter.formula(), HasSubstr("3 x 100MFLOP"));
}

TEST(NanSearch, NamesTheOperationOfTheForwardPass) {
  Tensor x = from_vector<float>({1, -1}, {2}).set_requires_grad();
  NanSearch search;
  Tensor y = log(x * 2.0) + 1.0;
  EXPECT_THAT(search.finding(), AllOf(HasSubstr("nan was made by log"), HasSubstr("[2]"), Not(HasSubstr("already"))));
}

TEST(NanSearch, NamesTheOperationOfTheBackwardPass) {
  Tensor x = from_vector<float>({4, 0}, {2}).set_requires_grad();
  NanSearch search;
  Tensor loss = sum(sqrt(x * 1.0) * 2.0);
  search.begin_backward();
  loss.backward();
  search.check_gradients({{"x", x}});
  EXPECT_THAT(search.finding(), HasSubstr("inf was made by the backward pass of sqrt"));
}

TEST(NanSearch, NamesTheGradientOfAParameter) {
  Tensor w = from_vector<float>({4, 0}, {2}).set_requires_grad();
  NanSearch search;
  Tensor loss = sum(sqrt(w));
  search.begin_backward();
  loss.backward();
  search.check_gradients({{"layer.weight", w}});
  EXPECT_THAT(search.finding(), AllOf(HasSubstr("gradient of layer.weight"), HasSubstr("sqrt")));
}

TEST(NanSearch, FindsNothingWhereAllIsFinite) {
  Tensor w = from_vector<float>({4, 1}, {2}).set_requires_grad();
  NanSearch search;
  Tensor loss = sum(sqrt(w));
  search.begin_backward();
  loss.backward();
  search.check_gradients({{"w", w}});
  EXPECT_EQ(search.finding(), "");
}

}  // namespace
}  // namespace xylem
