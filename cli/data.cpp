// SPDX-License-Identifier: Apache-2.0
#include "cli/data.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "data/prepare.h"

namespace xylem {
namespace {

// One line that is rewritten on a terminal, and a line every ten per cent in a log.
class ProgressLine {
 public:
  ~ProgressLine() {
    if (open_) std::fputc('\n', stderr);
  }
  void operator()(const std::string& what, int64_t done, int64_t total) {
    bool terminal = isatty(STDERR_FILENO);
    int64_t percent = total > 0 ? 100 * done / total : 100;
    if (!terminal && percent / 10 == shown_ / 10 && done < total) return;
    if (terminal && percent == shown_ && done < total) return;
    shown_ = percent;
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    std::fprintf(stderr, "%s%s: %lld of %lld (%lld %%), %.0f s%s", terminal ? "\r" : "", what.c_str(),
                 static_cast<long long>(done), static_cast<long long>(total), static_cast<long long>(percent), seconds,
                 terminal ? "" : "\n");
    std::fflush(stderr);
    open_ = terminal;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int64_t shown_ = -1;
  bool open_ = false;
};

std::string in(const std::string& folder, const char* file) { return (std::filesystem::path(folder) / file).string(); }

void add_fashion_mnist(CLI::App& data) {
  struct Options {
    std::string from = "/usr/share/datasets/fashion-mnist", out = ".data/fashion-mnist";
  };
  auto o = std::make_shared<Options>();
  CLI::App* command = data.add_subcommand("fashion-mnist", "Make train.h5 and test.h5 of Fashion-MNIST's IDX files");
  command
      ->add_option("--from", o->from,
                   "folder of the IDX files; the default is where Debian's dataset-fashion-mnist puts them")
      ->capture_default_str();
  command->add_option("--out", o->out, "folder to write")->capture_default_str();
  command->callback([o] {
    if (!std::filesystem::exists(o->from))
      throw std::runtime_error("there is no folder " + o->from +
                               "; install it with `apt install dataset-fashion-mnist`, or name another with --from");
    prepare_mnist(
        o->from, o->out,
        {"T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"});
    for (const char* file : {"train.h5", "test.h5"}) {
      std::string path = in(o->out, file);
      std::printf("%s: %s\n", path.c_str(), describe_data(path).c_str());
    }
  });
}

void add_text(CLI::App& data) {
  struct Options {
    std::vector<std::string> files;
    std::string out;
    double val_fraction = 0.05;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command = data.add_subcommand("text", "Make train.tok and val.tok of text files, byte by byte");
  command->add_option("FILE", o->files, "text files; - reads standard input")->required();
  command->add_option("--out", o->out, "folder to write")->required();
  command->add_option("--val-fraction", o->val_fraction, "how much of the end goes to val.tok; 0: no val.tok")
      ->capture_default_str();
  command->callback([o] {
    PreparedText made = prepare_text(o->files, o->out, o->val_fraction);
    std::printf("%s: %lld tokens\n", in(o->out, "train.tok").c_str(), static_cast<long long>(made.train_tokens));
    if (made.val_tokens > 0)
      std::printf("%s: %lld tokens\n", in(o->out, "val.tok").c_str(), static_cast<long long>(made.val_tokens));
  });
}

void add_images(CLI::App& data) {
  struct Options {
    std::string folder, out;
    ImageFolderOptions images;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command = data.add_subcommand("images", "Make an HDF5 file of a folder of JPEG and PNG images per class");
  command->add_option("FOLDER", o->folder, "holds FOLDER/<class>/<name>.jpg or .png")->required();
  command->add_option("--out", o->out, "HDF5 file to write")->required();
  command->add_option("--size", o->images.size, "height and width; the central square of an image is resized")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--channels", o->images.channels, "3 (RGB) or 1 (grey)")
      ->check(CLI::IsMember({1, 3}))
      ->capture_default_str();
  command->add_option("--deflate", o->images.deflate, "compression, 0 (none) to 9")
      ->check(CLI::Range(0, 9))
      ->capture_default_str();
  command->add_flag("--skip-bad", o->images.skip_bad, "leave damaged images out instead of stopping");
  command->callback([o] {
    ProgressLine progress;
    PreparedImages made = prepare_images(o->folder, o->out, o->images, std::ref(progress));
    for (const std::string& why : made.skipped) std::fprintf(stderr, "\nleft out: %s", why.c_str());
    if (!made.skipped.empty()) std::fputc('\n', stderr);
    std::printf("%s: %lld images of %zu classes, %zu left out\n", o->out.c_str(), static_cast<long long>(made.images),
                made.classes.size(), made.skipped.size());
  });
}

void add_shapes(CLI::App& data) {
  struct Options {
    std::string out;
    ShapesOptions shapes;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command = data.add_subcommand(
      "shapes", "Make train.h5 and test.h5 of drawn discs and rectangles, with the class of every pixel");
  command->add_option("--out", o->out, "folder to write")->required();
  command->add_option("--train", o->shapes.train, "pictures in train.h5")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--test", o->shapes.test, "pictures in test.h5")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--size", o->shapes.size, "height and width")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--seed", o->shapes.seed, "another seed, other pictures")->capture_default_str();
  command->callback([o] {
    prepare_shapes(o->out, o->shapes);
    for (const char* file : {"train.h5", "test.h5"}) {
      std::string path = in(o->out, file);
      std::printf("%s: %s\n", path.c_str(), describe_data(path).c_str());
    }
  });
}

void add_info(CLI::App& data) {
  auto path = std::make_shared<std::string>();
  CLI::App* command = data.add_subcommand("info", "Say what a dataset file holds");
  command->add_option("FILE", *path, "token file, HDF5 file, IDX file or image")->required();
  command->callback([path] { std::printf("%s\n", describe_data(*path).c_str()); });
}

}  // namespace

void add_data_command(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "Make datasets of text, images and IDX files");
  data->require_subcommand(1);
  add_fashion_mnist(*data);
  add_text(*data);
  add_images(*data);
  add_shapes(*data);
  add_info(*data);
}

}  // namespace xylem
