// SPDX-License-Identifier: Apache-2.0
// ONNX Runtime's loader, and where the bytes of large weights go.
#include <gmock/gmock.h>
#ifdef XY_WITH_ONNX
#include <onnx/onnx.pb.h>

#include "models/export/onnx/file.h"
#include "models/export/onnx/graph.h"
#endif

#include <cstdlib>
#include <fstream>

#include "models/export/runtime/ort.h"
#include "tests/support.h"

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
  Scratch dir;
  const std::string file = dir / "no_model.onnx";
  std::ofstream(file) << "this is no model";
  EXPECT_THAT(error_of([&] { OrtSession session(file); }),
              testing::AllOf(testing::HasSubstr("ONNX Runtime: "), testing::HasSubstr("no_model.onnx")));
  EXPECT_THROW(OrtSession(dir / "absent.onnx"), Error);
}

#ifdef XY_WITH_ONNX
onnx::ModelProto two_weights() {
  onnx::ModelProto model;
  model.set_ir_version(8);
  model.mutable_graph()->set_name("g");
  onnx_file::to_proto(full({1000}, 3), "first", *model.mutable_graph()->add_initializer());
  onnx_file::to_proto(full({2}, 5), "small", *model.mutable_graph()->add_initializer());
  onnx_file::to_proto(full({2000}, 4, f16), "second", *model.mutable_graph()->add_initializer());
  return model;
}

void save(onnx::ModelProto model, const std::string& file, bool external) {
  onnx_file::Writer writer(file, external);
  for (auto& t : *model.mutable_graph()->mutable_initializer()) {
    std::unique_ptr<std::string> data(t.release_raw_data());
    if (data) writer.add(t, data->data(), int64_t(data->size()));
  }
  writer.finish(model);
}

// The value is that of sha256sum over "w", the twelve bytes, "x".
TEST(OnnxFile, TheHashOfWeightsIsSha256OverNamesAndBytes) {
  exporting::OnnxGraph g;
  g.initializers["w"] = exporting::graph_tensor("w", from_vector(std::vector<float>{1, 2, -0.5f}, {3}));
  g.initializers["x"] = exporting::graph_tensor("x", empty({0}));
  EXPECT_EQ(exporting::weights_hash(g), "116ee1fe72a67a6ba65340a29e51cd3697018dabedabd70271f69bb356a0313f");
}

TEST(OnnxFile, ExternalDataLiesOnPagesAndComesBack) {
  Scratch dir;
  const std::string file = dir / "pages.onnx";
  save(two_weights(), file, true);
  onnx::ModelProto bare, whole;
  onnx_file::load(file, bare, false);
  int outside = 0;
  for (const auto& t : bare.graph().initializer()) {
    if (t.data_location() != onnx::TensorProto::EXTERNAL) {
      EXPECT_EQ(t.name(), "small");
      continue;
    }
    ++outside;
    for (const auto& e : t.external_data()) {
      if (e.key() == "offset") {
        EXPECT_EQ(std::stoll(e.value()) % 4096, 0);
      }
      if (e.key() == "location") {
        EXPECT_EQ(e.value(), "pages.weights.bin");
      }
    }
  }
  EXPECT_EQ(outside, 2);
  onnx_file::load(file, whole);
  EXPECT_EQ(onnx_file::to_tensor(whole.graph().initializer(0)).to_vector<float>(), std::vector<float>(1000, 3));
  EXPECT_EQ(onnx_file::to_tensor(whole.graph().initializer(2)).to_vector<float>(), std::vector<float>(2000, 4));
}

TEST(OnnxFile, ExternalDataMayNotLeaveTheFolderOrChangeItsLength) {
  Scratch dir;
  const std::string file = dir / "escape.onnx";
  for (auto [key, value] : {std::pair("location", "../escape.weights.bin"), std::pair("location", "/etc/passwd"),
                            std::pair("location", "absent.bin"), std::pair("length", "12"),
                            std::pair("offset", "999999999"), std::pair("offset", "-4096")}) {
    save(two_weights(), file, true);
    onnx::ModelProto model, out;
    onnx_file::load(file, model, false);
    for (auto& e : *model.mutable_graph()->mutable_initializer(0)->mutable_external_data())
      if (e.key() == key) e.set_value(value);
    save(std::move(model), file, false);
    EXPECT_THROW(onnx_file::load(file, out), Error) << key << " = " << value;
  }
}

TEST(OnnxFile, OtherFilesAreRefused) {
  Scratch dir;
  const std::string file = dir / "other.onnx";
  onnx::ModelProto model;
  EXPECT_THROW(onnx_file::load(dir / "absent.onnx", model), Error);
  EXPECT_THROW(onnx_file::load(dir.path(), model), Error);
  for (const char* text : {"", "plain text", "{\"json\": 1}"}) {
    std::ofstream(file) << text;
    EXPECT_THROW(onnx_file::load(file, model), Error) << text;
  }
}
#endif

}  // namespace
}  // namespace xylem
