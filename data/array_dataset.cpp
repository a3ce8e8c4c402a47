// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "data/dataset.h"

namespace xylem {
namespace {

Shape sample_shape(const Tensor& t) {
  Shape shape = t.shape();
  shape.erase(0);
  return shape;
}

class ArrayDataset final : public Dataset {
 public:
  ArrayDataset(const Tensor& inputs, const Tensor& targets, RecordSpec spec)
      : inputs_(inputs.detach().to(Device::cpu()).contiguous()),
        targets_(targets.detach().to(Device::cpu()).to(spec.target_dtype).contiguous()),
        spec_(std::move(spec)) {
    spec_.input = sample_shape(inputs_), spec_.input_dtype = inputs_.dtype();
    spec_.target = sample_shape(targets_);
    input_bytes_ = size_t(spec_.input.numel()) * size_of(spec_.input_dtype);
    target_bytes_ = size_t(spec_.target.numel()) * size_of(spec_.target_dtype);
  }
  int64_t size() const override { return inputs_.size(0); }
  const RecordSpec& spec() const override { return spec_; }
  void read(int64_t id, void* input, void* target) const override {
    std::memcpy(input, static_cast<const char*>(inputs_.raw()) + size_t(id) * input_bytes_, input_bytes_);
    std::memcpy(target, static_cast<const char*>(targets_.raw()) + size_t(id) * target_bytes_, target_bytes_);
  }

 private:
  Tensor inputs_, targets_;
  RecordSpec spec_;
  size_t input_bytes_, target_bytes_;
};

void check_rows(const Tensor& inputs, const Tensor& targets) {
  XY_CHECK(inputs.rank() >= 1 && targets.rank() >= 1 && inputs.size(0) == targets.size(0), "array dataset: inputs ",
           inputs.shape(), " and targets ", targets.shape(), " do not hold the same number of samples");
}

}  // namespace

std::shared_ptr<Dataset> array_dataset(const Tensor& inputs, const Tensor& labels, int64_t classes) {
  check_rows(inputs, labels);
  XY_CHECK(labels.rank() == 1, "array dataset: labels are [N], not ", labels.shape());
  std::vector<int64_t> values = labels.to_vector<int64_t>();
  for (size_t i = 0; i < values.size(); ++i)
    XY_CHECK(values[i] >= 0 && values[i] < classes, "label ", values[i], " of sample ", i, " is outside [0, ", classes,
             ")");
  return std::make_shared<ArrayDataset>(inputs, labels, RecordSpec{.classes = classes});
}

std::shared_ptr<Dataset> array_dataset(const Tensor& inputs, const Tensor& targets) {
  check_rows(inputs, targets);
  return std::make_shared<ArrayDataset>(
      inputs, targets, RecordSpec{.task = RecordSpec::Task::regression, .target_dtype = targets.dtype()});
}

}  // namespace xylem
