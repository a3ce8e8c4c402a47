// SPDX-License-Identifier: Apache-2.0
#include "models/train/task.h"

#include <algorithm>
#include <filesystem>

#include "models/nn/eval_scope.h"
#include "models/train/qat.h"
#include "ops/ops.h"

namespace xylem {
namespace {

std::shared_ptr<Dataset> open_dataset(const TrainConfig::Data& data, const std::string& key, const std::string& path,
                                      int64_t sequence) {
  bool tokens = data.kind == "tokens";
  std::string folder = std::filesystem::path(path).parent_path().string();
  XY_CHECK(std::filesystem::exists(path), key, ": there is no file '", path, "'; make it with `xylem data ",
           tokens ? "text FILE" : "fashion-mnist", " --out ", folder.empty() ? "." : folder,
           tokens ? "`" : "`, or of images of your own with `xylem data images`");
  return tokens ? token_dataset(path, sequence) : hdf5_images(path);
}

std::vector<float> to_floats(const std::vector<double>& v) { return {v.begin(), v.end()}; }

}  // namespace

std::unique_ptr<ZooModel> make_model(const TrainConfig& config) {
  auto model = zoo::create(config.model.name, config.model.options);
  prepare_quantization(*model, config);
  return model;
}

Task make_task(const TrainConfig& config, Device device, const Team& team) {
  const TrainConfig::Data& data = config.data;
  Task task;
  task.model = make_model(config);
  auto* language_model = dynamic_cast<LanguageModel*>(task.model.get());
  task.language = data.kind == "tokens";
  XY_CHECK(task.language ? language_model != nullptr : task.model->kind() == "classifier", "data.kind = \"", data.kind,
           "\" does not suit the model '", config.model.name, "', a ", task.model->kind());

  int64_t sequence = 0;
  if (task.language) {
    sequence = data.seq > 0 ? data.seq : language_model->context();
    XY_CHECK(sequence <= language_model->context(), "data.seq is ", sequence, " but the model's context is ",
             language_model->context());
    task.units_per_sample = sequence;
  }
  BatchSplit split = team.split(config);
  int64_t alone = config.train.micro_batch > 0 ? config.train.micro_batch : config.train.global_batch;
  auto open = [&](const std::string& key, const std::string& path, bool training) {
    std::shared_ptr<Dataset> set = open_dataset(data, key, path, sequence);
    XY_CHECK(!task.language || set->spec().classes <= language_model->vocab(), key, ": '", path,
             "' has a vocabulary of ", set->spec().classes, " but model.vocab is ", language_model->vocab());
    AugmentOptions augment{.mean = to_floats(data.mean), .stddev = to_floats(data.stddev)};
    if (training) augment.crop_padding = data.crop_padding, augment.flip = data.flip;
    auto val_batch = [&](int64_t size) { return std::min<int64_t>(set->size(), std::max<int64_t>(size, 64)); };
    if (!training) task.val_batch = val_batch(alone);
    SamplerOptions sampler{.batch = training ? split.micro : val_batch(split.micro),
                           .shuffle = training,
                           .seed = uint64_t(config.run.seed),
                           .drop_last = training,
                           .rank = team.rank(),
                           .world = team.size(),
                           .accumulate = training ? split.micro_batches : 1,
                           .same_order = true};
    return std::make_unique<Loader>(set, LoaderOptions{.sampler = sampler,
                                                       .augment = augment,
                                                       .threads = int(data.workers),
                                                       .prefetch = int(data.prefetch),
                                                       .device = device});
  };
  task.train = open("data.train", data.train, true);
  if (!data.val.empty()) task.val = open("data.val", data.val, false);
  return task;
}

Evaluation evaluate(Task& task, DType dtype, int64_t batches, const Team& team) {
  NoGrad guard;
  EvalScope evaluation(*task.model);

  Loader& loader = *task.val;
  int64_t all = loader.dataset().size(), wanted = batches > 0 ? std::min(batches * task.val_batch, all) : all;
  int64_t batch_size = loader.sampler().options().batch, per_step = batch_size * team.size();
  loader.set_position(0);
  Tensor loss_sum, correct_sum;
  auto add = [](Tensor& sum, const Tensor& value) { sum = sum.defined() ? sum + value : value; };
  for (int64_t step = 0; step * per_step < wanted; ++step) {
    Batch batch = loader.next();
    // The last batch is filled up with samples that were already seen. A rank that has nothing left computes with them,
    // so that all make the same calls, but does not count them.
    int64_t first = step * per_step + team.rank() * batch_size;
    int64_t valid = std::clamp<int64_t>(wanted - first, 0, batch_size), used = std::max<int64_t>(valid, 1);
    Tensor input = batch.input.narrow(0, 0, used), target = batch.target.narrow(0, 0, used);
    Tensor logits = (*task.model)(is_float(input.dtype()) ? input.to(dtype) : input);
    add(loss_sum, cross_entropy(logits, target).to(f64) * double(valid));
    if (!task.language) add(correct_sum, sum(eq(argmax(logits), target).to(f64)) * (valid > 0 ? 1.0 : 0.0));
  }
  Tensor totals =
      stack({loss_sum.reshape({}), task.language ? zeros_like(loss_sum).reshape({}) : correct_sum.reshape({})});
  if (team.size() > 1) team.group().all_reduce(totals).wait();
  std::vector<double> sums = totals.to_vector<double>();
  Evaluation result{.loss = sums[0] / double(wanted)};
  if (!task.language) result.accuracy = sums[1] / double(wanted);
  return result;
}

}  // namespace xylem
