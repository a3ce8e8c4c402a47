// SPDX-License-Identifier: Apache-2.0
#include "models/train/task.h"

#include <algorithm>
#include <filesystem>

#include "models/nn/eval_scope.h"
#include "models/train/qat.h"

namespace xylem {
namespace {

using LearningTask = RecordSpec::Task;

std::shared_ptr<Dataset> open_dataset(LearningTask task, const std::string& key, const std::string& path,
                                      int64_t sequence) {
  std::string folder = std::filesystem::path(path).parent_path().string(), out = folder.empty() ? "." : folder;
  std::string remedy = task == LearningTask::language_modelling ? "text FILE --out " + out + "`"
                       : task == LearningTask::segmentation
                           ? "shapes --out " + out + "`"
                           : "fashion-mnist --out " + out + "`, or of images of your own with `xylem data images`";
  XY_CHECK(std::filesystem::exists(path), key, ": there is no file '", path, "'; make it with `xylem data ", remedy);
  if (task == LearningTask::language_modelling) return token_dataset(path, sequence);
  return task == LearningTask::segmentation ? hdf5_masks(path) : hdf5_images(path);
}

void check_kind(const TrainConfig& config, const ZooModel& model) {
  const char* kind = model.task() == LearningTask::language_modelling ? "tokens" : "hdf5";
  XY_CHECK(config.data.kind == kind, "data.kind = \"", config.data.kind, "\" does not suit the model '",
           config.model.name, "', which is for ", name_of(model.task()), ": set data.kind = \"", kind, "\"");
}

// Tokens in a sample.
int64_t sequence_length(const TrainConfig::Data& data, const ZooModel& model) {
  const auto* language_model = dynamic_cast<const LanguageModel*>(&model);
  if (!language_model) return 1;
  const int64_t context = language_model->context();
  XY_CHECK(data.seq <= context, "data.seq is ", data.seq, " but the model's context is ", context);
  return data.seq > 0 ? data.seq : context;
}

// Validation takes batches of at least 64 samples, since it keeps no activations.
int64_t validation_batch(int64_t micro_batch, int64_t samples) {
  return std::min<int64_t>(samples, std::max<int64_t>(micro_batch, 64));
}

std::vector<float> to_floats(const std::vector<double>& v) { return {v.begin(), v.end()}; }

}  // namespace

std::unique_ptr<ZooModel> make_model(const TrainConfig& config) {
  auto model = zoo::create(config.model.name, config.model.options);
  prepare_quantization(*model, config);
  return model;
}

std::unique_ptr<Loader> open_data(const TrainConfig& config, const ZooModel& model, DataSplit split, Device device,
                                  const Team& team) {
  const TrainConfig::Data& data = config.data;
  const bool training = split == DataSplit::train;
  const std::string key = training ? "data.train" : "data.val", &path = training ? data.train : data.val;
  check_kind(config, model);
  std::shared_ptr<Dataset> set = open_dataset(model.task(), key, path, sequence_length(data, model));
  const int64_t known = model.classes(), used = set->spec().classes;
  if (model.task() == LearningTask::language_modelling)
    XY_CHECK(used <= known, key, ": '", path, "' has a vocabulary of ", used, " but model.vocab is ", known);
  else
    XY_CHECK(used <= known, key, ": '", path, "' has ", used, " classes but model.classes is ", known);
  AugmentOptions augment{.mean = to_floats(data.mean), .stddev = to_floats(data.stddev)};
  if (training) augment.crop_padding = data.crop_padding, augment.flip = data.flip;
  const BatchSplit share = team.split(config.train.global_batch, config.train.micro_batch);
  const SamplerOptions sampler{.batch = training ? share.micro : validation_batch(share.micro, set->size()),
                               .shuffle = training,
                               .seed = uint64_t(config.run.seed),
                               .drop_last = training,
                               .rank = team.rank(),
                               .world = team.size(),
                               .accumulate = training ? share.micro_batches : 1,
                               .same_order = true};
  return std::make_unique<Loader>(set, LoaderOptions{.sampler = sampler,
                                                     .augment = augment,
                                                     .threads = int(data.workers),
                                                     .prefetch = int(data.prefetch),
                                                     .device = device});
}

Shape Task::sample_shape() const { return language() ? Shape{units_per_sample} : train->dataset().spec().input; }

Task make_task(const TrainConfig& config, Device device, const Team& team) {
  Task task;
  task.model = make_model(config);
  task.train = open_data(config, *task.model, DataSplit::train, device, team);
  task.units_per_sample = sequence_length(config.data, *task.model);
  if (config.data.val.empty()) return task;
  task.val = open_data(config, *task.model, DataSplit::val, device, team);
  const int64_t alone = config.train.micro_batch > 0 ? config.train.micro_batch : config.train.global_batch;
  task.val_batch = validation_batch(alone, task.val->dataset().size());
  return task;
}

}  // namespace xylem
