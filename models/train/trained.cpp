// SPDX-License-Identifier: Apache-2.0
#include "models/train/trained.h"

#include <cstdio>
#include <filesystem>

#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/reader.h"
#include "models/nn/init.h"
#include "models/nn/lazy.h"
#include "models/train/qat.h"
#include "models/train/task.h"

namespace xylem {

Trained load_trained(const std::string& run, bool lazy) {
  namespace fs = std::filesystem;
  std::vector<std::string> notes;
  std::string folder = find_checkpoint(run, &notes);
  for (const std::string& note : notes) std::fprintf(stderr, "xylem: %s\n", note.c_str());
  fs::path config = fs::path(run) / "config.toml";
  if (!fs::exists(config)) config = fs::path(folder) / "../../config.toml";  // `run` is one checkpoint
  Trained trained{.config = load_config(config.string()), .model = nullptr};
  LazyScope scope;
  if (lazy) {
    init::ShapesScope shapes;
    trained.model = make_model(trained.config);
    adopt_state_dict(*trained.model, lazy_weights(folder));
  } else {
    trained.model = make_model(trained.config);
    load_state_dict(*trained.model, load_weights(folder));
  }
  const CheckpointInfo info = CheckpointReader(folder).info();
  trained.step = info.step;
  trained.extra = info.extra;
  finish_quantization(*trained.model, trained.config, trained.step);
  trained.model->eval();
  return trained;
}

}  // namespace xylem
