// SPDX-License-Identifier: Apache-2.0
// ONNX Runtime's loader. Reading and writing files is tested through export_onnx() in the other export tests.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "models/export/ort.h"

namespace xylem {
namespace {

TEST(Ort, IsFoundOrSaysWhereItLooked) {
  if (OrtSession::available()) {
    EXPECT_FALSE(OrtSession::version().empty());
    EXPECT_EQ(OrtSession::why_unavailable(), "");
  } else {
    EXPECT_NE(OrtSession::why_unavailable().find("XY_ONNXRUNTIME"), std::string::npos);
  }
}

TEST(Ort, RepeatsWhatOnnxRuntimeSaysOfABadFile) {
  if (!OrtSession::available()) GTEST_SKIP() << OrtSession::why_unavailable();
  const std::string file = testing::TempDir() + "no_model.onnx";
  std::ofstream(file) << "this is no model";
  try {
    OrtSession session(file);
    FAIL() << "accepted a text file";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("ONNX Runtime: "), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("no_model.onnx"), std::string::npos) << e.what();
  }
  EXPECT_THROW(OrtSession(testing::TempDir() + "absent.onnx"), Error);
}

}  // namespace
}  // namespace xylem
