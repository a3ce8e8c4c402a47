// SPDX-License-Identifier: Apache-2.0
// Trains a small GPT on the bytes of a text, keeps checkpoints and writes a sample. Run it again with more steps and it
// goes on from the last checkpoint.
//   train_gpt [TEXT [STEPS [RUN_FOLDER]]]        without arguments: a few steps on a text it makes itself
#include <xylem/xylem.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace xy = xylem;

std::string read_text(const char* path) {
  if (path) {
    std::ifstream file(path, std::ios::binary);
    XY_CHECK(file, "cannot open ", path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string text;
  for (int i = 0; i < 3000; ++i) text += std::to_string(i) + " plus one is " + std::to_string(i + 1) + ". ";
  return text;
}

void run(int argc, char** argv) {
  std::string text = read_text(argc > 1 ? argv[1] : nullptr);
  int64_t steps = argc > 2 ? std::stoll(argv[2]) : 40;
  std::string folder = argc > 3 ? argv[3] : "runs/train_gpt";
  constexpr int64_t kBatch = 8, kMicroBatches = 2, kContext = 64;

  xy::Device device = xy::Device::parse("auto");
  xy::rng::seed(1);

  // The last tenth of the text is kept for validation.
  std::filesystem::create_directories(folder);
  size_t cut = text.size() * 9 / 10;
  xy::write_byte_tokens(folder + "/train.tokens", text.substr(0, cut));
  xy::write_byte_tokens(folder + "/val.tokens", text.substr(cut));
  xy::Loader train(xy::token_dataset(folder + "/train.tokens", kContext, 1),
                   {.sampler = {.batch = kBatch}, .device = device});
  xy::Loader val(xy::token_dataset(folder + "/val.tokens", kContext),
                 {.sampler = {.batch = kBatch, .shuffle = false, .drop_last = false}, .device = device});

  xy::zoo::Gpt2 model({.vocab = 256, .context = kContext, .layers = 4, .heads = 4, .width = 128, .dropout = 0.1});
  model.to(device);
  if (device.is_cuda()) model.to(xy::bf16);  // the optimizer keeps f32 masters
  xy::AdamW optimizer(model, {.lr = 2e-3, .beta2 = 0.95, .weight_decay = 0.1});
  xy::Schedule schedule{.kind = xy::Schedule::Kind::cosine, .lr = 2e-3, .total = steps, .warmup = 10, .floor = 0.1};
  xy::TrainStep train_step(model, optimizer, {.micro_batches = kMicroBatches, .clip = 1, .cuda_graph = true});

  xy::Checkpoints checkpoints(folder, 2);
  xy::CheckpointParts parts{.model = model, .optimizer = &optimizer};
  int64_t step = checkpoints.resume(parts).value_or(0);
  if (step > 0) std::printf("goes on after step %ld of %s\n", long(step), folder.c_str());
  train.set_position(step * kMicroBatches);

  while (step < steps) {
    optimizer.set_lr(schedule(step));
    train_step.run(train);
    bool last = ++step == steps;
    if (step % 10 == 0 || last)
      std::printf("step %5ld  loss %.4f  norm %.3f  lr %.2e\n", long(step), train_step.loss().item(),
                  train_step.norm().item(), optimizer.lr());
    if (step % 1000 != 0 && !last) continue;
    std::printf("step %5ld  validation loss %.4f nats per byte\n", long(step),
                xy::evaluate(model, val, {.samples = 80}).loss);
    checkpoints.save(step, parts);
  }

  std::string prompt = text.substr(0, 16), sample;
  for (int64_t byte : xy::generate(model, {prompt.begin(), prompt.end()}, {.max_tokens = 80, .temperature = 0.8}))
    sample += char(byte);
  std::printf("\n%s|%s\n", prompt.c_str(), sample.c_str());
  xy::save_pretrained(model, folder + "/model.safetensors");  // under Hugging Face's names
}

int main(int argc, char** argv) {
  return xy::guarded_main([&] { run(argc, argv); });  // an error is a sentence, and code 1
}
